"""Every command on a page runs, in the order of the page and in one folder, with the files that the page shows."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli.__main__ import app

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("cli", "tables", "templates", "pipelines"))]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<body>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"`(?:--\w+ )?([\w.]+\.(?:py|txt|jinja|jsonl))`")
_ELSEWHERE = re.compile(r"Qwen/|--workers|^outlines-cont serve|^ray |pip install|^git |^curl |^ *\"|^python -m|^cd |^\. |^chromium")
"""What needs a hub, a cluster, the package index or a server."""

_ORDER = """from pydantic import BaseModel


class Order(BaseModel):
    customer: str
    item: str
    quantity: int
"""


def _blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield the text before each fence, its kind and its content without indentation."""
    end = 0
    for found in _FENCE.finditer(page):
        indent = len(found["indent"])
        yield page[end : found.start()], found["kind"], "".join(line[indent:] for line in found["body"].splitlines(keepends=True))
        end = found.end()


def _prepare(folder: Path) -> None:
    """Write the files of which pages say that a reader has them: messages, and the schema of a record."""
    messages = [json.loads(line)["text"] for line in files("outlines_cont").joinpath("demo_messages.jsonl").read_text().splitlines()[:2]]
    (folder / "models.py").write_text(_ORDER)
    (folder / "messages.txt").write_text("".join(f"{text}\n" for text in messages))
    gold = {"customer": "Ana Novak", "item": "lamps", "quantity": 3}
    rows = "".join(json.dumps({"text": text, "gold": gold}) + "\n" for text in messages)
    for name in ("messages", "rows", "known", "new"):
        (folder / f"{name}.jsonl").write_text(rows)
    with (folder / "messages.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in messages)])


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("models", "models.py"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    _prepare(tmp_path)
    num_run, printed = 0, ""
    for before, kind, body in _blocks((ROOT / page).read_text(encoding="utf-8")):
        named = _NAMED.findall(before.rstrip().rpartition("\n\n")[2]) if before.rstrip().endswith((":", "such as")) else []
        if kind in ("python", "text", "jinja") and len(named) == 1:
            (tmp_path / named[0]).write_text(body)
        elif kind == "text" and printed and not before.strip():
            assert _lines(body) == _lines(printed), f"the page shows another output of the command before it: {printed}"
        printed = ""
        if kind == "bash":
            for command in body.replace("\\\n", " ").splitlines():
                if not _ELSEWHERE.search(command):
                    printed = _printed(re.sub(r" # .*", "", command))
                    num_run += 1
    assert num_run
    for name in ("models", "models.py"):
        sys.modules.pop(name, None)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]  # tables are padded


def _printed(command: str) -> str:
    """Run a command, in this process if it is one of ours alone; return what it prints."""
    if not command.startswith("outlines-cont "):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, f"{command}: {result.output} {result.exception!r}"
    return result.stdout
