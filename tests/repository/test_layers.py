"""Which room may import which: the table, and that every import of the packages keeps to it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fsm", "outlines_cont")

# Of each package, modules that every module of it may import: they import nothing of ours but each other.
LEAVES = {
    "fsm": "errors limits bitmask process_fork terms.work",
    "outlines_cont": "checks device errors interfaces immutable user_code budget jinja_sandbox meter waiting near_names",
}

# From the bottom to the top: a room may import those that stand behind it, and each of these stands above it in the table.
# A room is a folder, or a module that lies in the package itself; names without a package are of `outlines_cont`.
ROOMS = """
fsm.recipe           <-
fsm.terms            <-
fsm.automaton        <- fsm.terms
fsm.drawing          <- fsm.automaton fsm.terms
fsm.expression       <- fsm.automaton fsm.drawing fsm.recipe fsm.terms
fsm.languages        <- fsm.expression fsm.recipe fsm.terms
fsm.tags             <- fsm.automaton fsm.expression fsm.recipe fsm.terms
fsm.pattern          <- fsm.expression fsm.recipe fsm.terms
fsm.schema.keywords  <- fsm.pattern fsm.terms
fsm.schema.documents <- fsm.automaton fsm.schema.keywords fsm.terms
fsm.schema.scalars   <- fsm.automaton fsm.schema.keywords fsm.terms
fsm.schema           <- fsm.automaton fsm.expression fsm.pattern fsm.recipe fsm.schema.documents fsm.schema.keywords
                        fsm.schema.scalars fsm.terms
fsm.lark             <- fsm.automaton fsm.expression fsm.pattern fsm.recipe fsm.schema fsm.terms
fsm.trie             <-
fsm.tokens.stacks    <- fsm.automaton fsm.terms fsm.trie
fsm.tokens           <- fsm.automaton fsm.drawing fsm.expression fsm.terms fsm.tokens.stacks fsm.trie
fsm.types            <- fsm.expression fsm.languages fsm.pattern fsm.recipe fsm.schema.keywords fsm.terms
kv                   <-
kv.paged             <- kv
models.tokenizer     <-
inspector            <-
sampling             <-
samplers             <- sampling
state                <- fsm inspector kv models.tokenizer sampling
text_search          <- fsm fsm.automaton fsm.pattern fsm.terms
policies             <- fsm fsm.automaton fsm.terms models.tokenizer state text_search
engine.drawing       <- policies sampling
engine.drafting      <- engine.drawing policies sampling
drafts               <- engine.drafting engine.drawing kv policies sampling
engine               <- engine.drafting engine.drawing kv models.tokenizer policies samplers sampling state
models               <- engine kv kv.paged models.tokenizer
streams              <- engine.drawing models.tokenizer policies sampling text_search
conversation         <- engine engine.drawing fsm fsm.expression kv models policies samplers sampling state
events               <- samplers sampling
chats                <- events fsm fsm.schema fsm.schema.documents fsm.tokens kv models models.tokenizer state
generation.tasks     <- engine
generation.choices   <- engine fsm fsm.automaton models.tokenizer policies samplers state
generation           <- chats drafts engine events fsm fsm.automaton fsm.lark fsm.schema fsm.schema.scalars fsm.tokens
                        generation.choices generation.tasks models.tokenizer policies samplers sampling state streams
generate             <- drafts events fsm fsm.automaton fsm.expression fsm.schema generation generation.choices policies
                        samplers sampling state
continuation         <- events generate generation sampling state
replies              <- chats events fsm generation models.tokenizer policies state streams
chat                 <- chats events fsm generate generation replies samplers sampling state
adapters             <- chat chats engine.drawing events fsm fsm.automaton fsm.schema fsm.tokens generate generation
                        models.tokenizer policies replies samplers
programs             <- engine policies sampling state
control              <- engine fsm generate generation models.tokenizer policies programs samplers sampling
                        state
pipelines            <- chat engine events fsm fsm.tokens generate generation generation.tasks models models.tokenizer samplers
                        sampling state
batches              <- pipelines
templates            <- engine events fsm generate generation generation.tasks kv models models.tokenizer policies samplers
                        sampling state
serve.protocols      <- chats engine events fsm state
serve                <- chat chats engine events fsm fsm.terms generate generation generation.choices inspector models
                        policies samplers serve.protocols state
cli                  <- batches chat continuation fsm fsm.automaton generate generation generation.tasks models outlines_cont
                        pipelines samplers sampling serve state templates
"""

# The most modules that a chain of imports has, in each package; ten is the aim, and no chain may grow.
LONGEST_CHAIN = {"fsm": 10, "outlines_cont": 16}


@cache
def sources() -> dict[str, Path]:
    """The modules of both packages by name, but for the entry `python -m`; a folder's is that of its `__init__`."""
    found = {}
    for package in PACKAGES:
        for path in {*(ROOT / package).rglob("*.py")} - {ROOT / package / "__main__.py"}:
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def room(module: str) -> str:
    """The room of a module: its folder, or itself where it lies in the package."""
    path = sources()[module]
    folder = ".".join(path.relative_to(ROOT).parent.parts)
    return module if folder in PACKAGES and path.name != "__init__.py" else folder


@cache
def imports() -> dict[str, set[str]]:
    """For each module those of ours that it imports, wherever in the file: lazily and for types alone, too."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in sources().items():
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{module} imports relatively"
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in sources() else node.module for name in full]
            else:
                continue
            edges[module] |= {name for name in names if name in sources() and name != module}
    return edges


def table() -> dict[str, set[str]]:
    """What each room may import."""
    rows = (entry.split("<-") for entry in re.split(r"\n(?! )", ROOMS.strip()))
    return {_full(name.strip()): {_full(room) for room in allowed.split()} for name, allowed in rows}


def _full(name: str) -> str:
    return name if name.partition(".")[0] in PACKAGES else f"outlines_cont.{name}"


def leaves() -> set[str]:
    return {f"{package}.{name}" for package, names in LEAVES.items() for name in names.split()}


def crossings() -> dict[str, set[str]]:
    """For each room the others that it imports, leaves left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, targets in imports().items():
        if module not in PACKAGES:  # they export what all rooms have
            found[room(module)] |= {room(target) for target in targets} - leaves() - {room(module)}
    return found


def test_every_import_between_rooms_is_in_the_table_and_every_entry_is_used() -> None:
    allowed = table()
    for name, targets in crossings().items():
        if name not in leaves():
            assert targets == allowed[name], name
    assert set(allowed) == set(crossings()) - leaves()


def test_the_table_goes_from_the_bottom_to_the_top() -> None:
    above: set[str] = set(PACKAGES)  # what a whole package exports may be imported by those above it
    for name, allowed in table().items():
        assert allowed <= above, (name, allowed - above)
        above.add(name)


def test_leaves_import_nothing_but_leaves() -> None:
    for leaf in leaves():
        assert imports()[leaf] <= leaves(), leaf


def test_no_module_imports_another_by_a_literal_name() -> None:
    """Imports by a literal name, which the table does not see."""
    found = {
        (module, node.args[0].value)
        for module, path in sources().items()
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))
        if isinstance(node.args[0], ast.Constant) and node.args[0].value.startswith(PACKAGES)
    }
    assert found == set()


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"\bre\._|\bsre_|from re import _|import _sre", "fsm.pattern.python_pattern"),  # what of `re` is private
        (r"^\s*(?:import|from) interegular", "fsm.automaton.character_dfa"),
    ],
)
def test_one_module_alone_touches(pattern: str, name: str) -> None:
    found = [module for module, path in sources().items() if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert found == [name]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_has_few_modules(package: str) -> None:
    sizes: dict[str, int] = defaultdict(int)
    for module, path in sources().items():
        if module.startswith(package) and path.name != "__init__.py":
            sizes[".".join(path.relative_to(ROOT).parent.parts)] += 1
    assert max(sizes.values()) <= 16, sizes


@pytest.mark.parametrize("package", PACKAGES)
def test_no_chain_of_imports_goes_in_a_ring_or_is_long(package: str) -> None:
    chains: dict[str, tuple[str, ...]] = {}

    def longest(module: str, path: tuple[str, ...]) -> tuple[str, ...]:
        assert module not in path, " -> ".join((*path, module))
        if module not in chains:
            targets = (t for t in imports()[module] if t.startswith(package) and t != package)
            below = [longest(target, (*path, module)) for target in targets]
            chains[module] = (module, *max(below, key=len, default=()))
        return chains[module]

    found = max((longest(module, ()) for module in sources() if module.startswith(f"{package}.")), key=len)
    assert len(found) <= LONGEST_CHAIN[package], " -> ".join(found)
