"""The page on the command line names what there is, and no more."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from typer.testing import CliRunner

from outlines_cont.cli import __main__ as cli
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.pipelines.outcome import OUTPUT_FIELDS
from outlines_cont.pipelines.prompt_template import DEFAULT_SOURCE, MAX_CHARACTERS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
HELP = CliRunner().invoke(cli.app, ["extract", "--help"], env={"COLUMNS": "80"}).stdout
DEFAULTS = {field.name: field.default for field in dataclasses.fields(ExtractOptions) if field.default is not dataclasses.MISSING}


def test_the_table_of_options_names_those_of_the_help() -> None:
    table = PAGE[PAGE.index("## All options") : PAGE.index("## The demo")]
    offered = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", HELP, re.MULTILINE)) | {"--no-progress", "--no-fused"}

    assert set(re.findall(r"`(--[a-z-]+)`", table)) == offered - {"--help"}


def test_the_page_and_the_command_have_the_same_defaults() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| `?([\w-]+)`? \|", PAGE, re.MULTILINE))

    assert ExtractOptions(input=[""], schema="").max_tokens is None  # not given, of which the command tells
    for name in ("batch_size", "max_tokens", "text_field", "input_format", "whitespace"):
        default = ExtractOptions(input=[""], schema="").most_tokens if name == "max_tokens" else DEFAULTS[name]
        assert rows[name.replace("_", "-")] == str(default)


def test_fields_statuses_and_limits_are_those_of_the_program() -> None:
    for name in OUTPUT_FIELDS:
        assert f"| `{name}` |" in PAGE
    assert repr(DEFAULT_SOURCE).replace("'", '"') in PAGE
    assert f"{MAX_CHARACTERS:,} characters" in PAGE
    statuses = re.findall(r"\b(\d+) (?:every|some|nothing|interrupted)", " ".join(HELP.split()))
    assert statuses == re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
