"""The Python of the README and of the tutorials runs as it stands, page by page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fsm.errors
import outlines_cont.errors
from tests.page_server import PageServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    """Runs pages, with torch imported once."""
    with PageServer() as server:
        yield server


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/tutorial.md",
        "docs/chaining.md",
        "docs/constrain.md",
        "docs/controllers.md",
        "docs/engine.md",
        "docs/fork.md",
        "docs/json_text.md",
        "docs/sampling.md",
    ],
)
def test_the_python_of_a_page_runs(page: str, server: PageServer, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    code, out, err = server.run(script)
    assert code == 0, err
    assert out.strip()


@pytest.mark.parametrize("page", ["docs/heal.md"])
def test_the_output_on_a_page_is_what_its_python_prints(page: str, server: PageServer, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)), encoding="utf-8"
    )
    shown = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    code, out, err = server.run(script)
    assert code == 0, err
    assert shown == out


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []


@pytest.mark.parametrize("module", [fsm.errors, outlines_cont.errors])
def test_every_error_is_in_the_reference(module: ModuleType) -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    errors = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(errors) > 10
    assert [name for name in errors if f"`{name}`" not in page and f".{name}`" not in page] == []
