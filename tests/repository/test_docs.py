"""The Python of the pages runs as it stands and prints what the page says; the page on structure is that of the docstrings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import fsm
import fsm.errors
import outlines_cont.errors
from scripts.site import GATHERED, commands, loaded
from scripts.structure_page import PAGE, PLACE, line_of, renewed
from tests.page_server import PageServer
from tests.repository.test_repository import PUBLIC

ROOT = Path(__file__).parents[2]


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    page: BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    for page in ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
}
"""The blocks of every page: their language, and what is in them."""

END_OF_BLOCK = "-- end of block --"
SECONDS = re.compile(r"\b\d+\.\d+(?= s\b)|(?<=forward )\d+\.\d+|(?<=masks )\d+\.\d+|(?<=sampling )\d+\.\d+|(?<=Python )\d+\.\d+")
ROUNDED = re.compile(r"-?\d+\.\d{4,}")


RUN = [(page, 1) for page, blocks in PAGES.items() if any(kind == "python" for kind, _ in blocks)]
# What a newcomer reads first is run with two threads, too, which add in another order.
RUN += [("README.md", 2), ("docs/tutorial.md", 2)]


@pytest.mark.parametrize(("page", "threads"), RUN)
def test_a_page_prints_what_it_says(page: str, threads: int, page_server: PageServer, tmp_path: Path) -> None:
    """A block of Python that prints has a block `text` behind it: each line of it is printed, and nothing else.

    Two figures may differ: seconds (before ` s`, or in the times of an engine), which may be any, and numbers with four or more
    decimals, such as log-probabilities, by a thousandth, since machines add in different orders.
    """
    blocks = PAGES[page]
    said = [
        blocks[n + 1][1] if blocks[n + 1 : n + 2] and blocks[n + 1][0] == "text" else ""
        for n, (kind, _) in enumerate(blocks)
        if kind == "python"
    ]
    assert len([kind for kind, _ in blocks if kind == "text"]) == sum(map(bool, said)), "a block `text` that no Python prints"
    script = tmp_path / "page.py"
    ended = f"\nprint('\\n{END_OF_BLOCK}')\n"
    programs = [code + ended for kind, code in blocks if kind == "python"]
    script.write_text("".join([f"__import__('torch').set_num_threads({threads})\n", *programs]), encoding="utf-8")
    code, out, err = page_server.run(script)
    assert (code, err) == (0, "")
    printed = out.split(f"\n{END_OF_BLOCK}\n")[:-1]
    assert [_exact(text) for text in said] == [_exact(text) for text in printed]
    assert _rounded(said) == pytest.approx(_rounded(printed), rel=1e-3, abs=1e-3)


def _exact(text: str) -> list[str]:
    """The lines of a text, without the figures that may differ, and without white space at the ends of lines."""
    text = ROUNDED.sub("<rounded>", SECONDS.sub("<seconds>", text))
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _rounded(texts: list[str]) -> list[float]:
    return [float(figure) for text in texts for figure in ROUNDED.findall(text)]


OUTLINES = """
from typing import Literal
import outlines
from pydantic import BaseModel
from outlines_cont import models

class Order(BaseModel):
    customer: str
    item: str
    quantity: int

def place_order(item: Literal["lamps", "chairs"], quantity: Literal[1, 2, 3]) -> None:
    ...

tiny = models.tiny()
outlines_model = outlines.from_transformers(tiny.hugging_face, tiny.tokenizer.hugging_face)
message, date = "Message: Hello, this is Ana Novak. Please send 3 lamps by 2026-05-04.\\n", "[0-9]{4}-[0-9]{2}-[0-9]{2}"
prompts = [message + "Kind: ", "Message: The lamp is broken.\\nKind: "]
"""
"""What the lines of the page on coming from elsewhere have before them."""


def test_what_a_page_says_of_outlines_runs_in_outlines(tmp_path: Path) -> None:
    pytest.importorskip("outlines")
    said = [code for kind, code in PAGES["docs/coming_from.md"] if kind == "py"]
    due, kind, record, call, stream, batch = (re.search(r"^# outlines.*\n(.+)$", code, re.MULTILINE)[1] for code in said)
    script = tmp_path / "outlines_lines.py"
    failing = f"try: list({stream})\nexcept NotImplementedError: print('no stream')\n"
    script.write_text(OUTLINES + "".join(f"print({line})\n" for line in (due, kind, record, call, batch)) + failing)
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True, cwd=ROOT)
    due, kind, record, call, batch, stream = done.stdout.splitlines()
    assert (due, kind, batch, stream) == ("2026-05-04", "order", "['order', 'complaint']", "no stream")
    assert json.loads(record) == {"customer": "Ana Novak", "item": "lamps", "quantity": 3}
    assert json.loads(call).keys() == {"item", "quantity"}


def test_every_page_has_a_title_and_says_something() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
    assert len(pages) > 20
    assert [name for name, text in pages.items() if not text.startswith("# ") or len(text) < 500] == []


@pytest.mark.parametrize("page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]))
def test_links_between_pages_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


@pytest.mark.parametrize("module", [fsm.errors, outlines_cont.errors])
def test_every_error_is_in_the_reference(module: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    errors = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(errors) > 10
    assert [name for name in errors if f"`{name}`" not in page and f".{name}`" not in page] == []


@pytest.mark.parametrize("module", ["fsm", "fsm.types", "outlines_cont", *(f"outlines_cont.{name}" for name in PUBLIC)])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    values = {name: getattr(import_module(module), name) for name in import_module(module).__all__}
    assert values
    ours = {name for name, value in values.items() if not isinstance(value, ModuleType)}
    assert {name for name in ours if not shown & names_of(module, name, values[name])} == set()


def names_of(module: str, name: str, value: object) -> set[str]:
    """The names under which the reference may have a public name: it is exported twice, or is an error."""
    home = getattr(value, "__module__", module)
    others = {f"{package}.{name}" for package in ("fsm", "outlines_cont", *(f"outlines_cont.{part}" for part in PUBLIC))}
    same = {other for other in others if getattr(import_module(other.rpartition(".")[0]), name, None) is value}
    return {f"{module}.{name}", *same, *({home} if home.endswith(".errors") else ())}


def test_every_page_is_in_the_navigation_of_the_site_and_nothing_else() -> None:
    """All but the tables of measurements, to which the page on benchmarks leads."""
    named = re.findall(r"^ +- ([\w/.]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {path for pattern in GATHERED for path in ROOT.glob(pattern) if path.suffix == ".md" and path.parent.name != "results"}
    assert len(named) == len(set(named)) > 40
    assert set(named) == {str(path.relative_to(ROOT)) for path in pages}


def test_a_page_of_the_site_that_loads_something_from_another_host_is_found() -> None:
    assert loaded('<script src="https://unpkg.com/mermaid"></script><a href="https://example.org">') == ["https://unpkg.com/mermaid"]
    assert loaded('<link rel="stylesheet" href="https://fonts.example/x.css"><link rel="canonical" href="https://x.org/">')
    assert loaded('<script src="../assets/mermaid.js"></script><link rel="canonical" href="https://x.org/">') == []


def test_the_help_of_every_command_is_in_the_reference() -> None:
    help_of = commands()
    assert all(f"## `outlines-cont {name}`" in help_of for name in ("demo", "extract", "run", "schema", "chat", "serve"))


def test_the_page_has_every_limit_of_compiling_with_its_default() -> None:
    text = (ROOT / "docs" / "constrain.md").read_text(encoding="utf-8")
    told: dict[str, int] = {}
    for row in re.findall(r"^\| (`max_.*) \|$", text.partition("| bound of `fsm.Limits`")[2], re.MULTILINE):
        names, _, defaults = row.split(" | ")
        numbers = [int(one.replace(",", "")) for one in defaults.split("; ")]
        told |= zip(re.findall(r"`(\w+)`", names), numbers, strict=True)
    assert told == {limit.name: limit.default for limit in fields(fsm.Limits)}


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "run `python -m scripts.structure_page`"


def test_the_walks_name_places_and_the_first_has_few() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(PLACE.findall(page)) >= 25
    walk = page.split("## From a call to the KV cache and back")[1].split("\n## ")[0]
    assert 5 <= len([line for line in walk.splitlines() if line.partition(".")[0].strip().isdigit()]) <= 12


def test_the_numbers_of_each_list_count_up() -> None:
    numbers = [int(found) for found in re.findall(r"^(\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
    assert numbers.count(1) >= 6
    assert all(number in (1, before + 1) for before, number in pairwise([0, *numbers]))


def test_a_place_that_is_not_there_is_an_error() -> None:
    assert line_of("fsm/tokens/token_fsm.py", "TokenFSM.bitmask") > line_of("fsm/tokens/token_fsm.py", "TokenFSM") > 0
    with pytest.raises(KeyError, match="defines no `no_such_name`"):
        line_of("fsm/expression.py", "no_such_name")
