"""`renewed`: docs/structure.md with its generated parts up to date: the tables of modules, and the lines that the walks name.

    python -m scripts.structure_page

A module is described by the first paragraph of its docstring, a room by the docstring of its `__init__`. In a walk, a place is written as
a path with a line, and the name of what is defined there, each in backticks; the line is that of the name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"
PLACE = re.compile(r"`((?:fsm|outlines_cont)/[\w/]+\.py):(\d+)` `([\w.]+)`")
_TITLES = {
    "fsm": "## `fsm/`: languages over text, token FSMs. Never torch.",
    "outlines_cont": "## `outlines_cont/`: generators, state, engine",
}
_AFTER = "## Beside the packages"


def renewed(page: str) -> str:
    """Return the page with new tables and lines.

    Raises:
        KeyError: a walk names something that its module does not define.
    """
    before, rest = page.split(next(iter(_TITLES.values())), 1)
    after = rest.split(_AFTER, 1)[1]
    tables = "".join(f"{title}\n\n{''.join(_rooms(package))}" for package, title in _TITLES.items())
    return PLACE.sub(_renumbered, before + tables + _AFTER + after)


def line_of(path: str, name: str) -> int:
    """Return the line on which a module defines a function, a class, a method (`Class.method`) or a constant."""
    lines = _definitions(path)
    if name not in lines:
        raise KeyError(f"docs/structure.md: {path} defines no `{name}`")
    return lines[name]


def _renumbered(place: re.Match[str]) -> str:
    path, _, name = place.groups()
    return f"`{path}:{line_of(path, name)}` `{name}`"


@cache
def _definitions(path: str) -> dict[str, int]:
    found = {}
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part.lineno for part in node.body if isinstance(part, _Function)}
        if isinstance(node, ast.ClassDef | _Function):
            found[node.name] = node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node.lineno for target in targets if isinstance(target, ast.Name)}
    return found


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _rooms(package: str) -> Iterator[str]:
    """Yield the part of the page about each folder of a package."""
    root = ROOT / package
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        if folder != root:
            yield f"### `{package}/{folder.relative_to(root)}/`\n\n{' '.join(_paragraphs(folder / '__init__.py'))}\n\n"
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        rows = (f"| `{path.relative_to(root)}` | {_first_sentence(path)} |\n" for path in modules)
        yield f"| module | what it is about |\n|---|---|\n{''.join(rows)}\n" if modules else ""


def _paragraphs(path: Path) -> list[str]:
    """Return the paragraphs of the docstring of a module, each as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return [" ".join(part.split()).replace("|", "\\|") for part in text.split("\n\n")]


def _first_sentence(path: Path) -> str:
    return re.split(r"(?<=\.) (?=[A-Z`])", _paragraphs(path)[0], maxsplit=1)[0]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
