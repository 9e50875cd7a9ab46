"""Errors on the command line speak of flags: what a message says for Python becomes the flag of the command, or goes."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli.__main__ import app
from outlines_cont.cli.console import flags_of, in_words_of_shell
from outlines_cont.cli.options import ChatOptions, ExtractOptions, ServeOptions

FLAGS = {"resume", "overwrite", "max_tokens", "batch_size", "thinking", "text_field"}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("'a' exists: resume with `resume=True` (--resume), or name another.", "'a' exists: resume with `--resume`, or name another."),
        ("expected an int as `max_tokens`, got 0", "expected an int as `--max-tokens`, got 0"),
        ("cut. Raise `max_tokens` (--max-tokens), or bound it.", "cut. Raise `--max-tokens`, or bound it."),
        ("No x. Give it for all rows: `x=...`, on the command line `--set x=...`.", "No x. Give it for all rows: `--set x=...`."),
        ("no thoughts, got <HuggingFaceModel '/a b', cpu>. Pass them: `thinking=Thinking(begin='x')`.", "no thoughts, got this model."),
        *[(kept, kept) for kept in ("No 'chioce'. Did you mean 'choice'? Test `x | default('')`", "Cut (twice). It is (nearly) done.")],
        ("refused. Write `samplers.greedy()`. It is large.", "refused. It is large."),
        ("expected `other` and `kind`, got `a`", "expected `other` and `kind`, got `a`"),
    ],
)  # fmt: skip
def test_a_message_is_said_in_flags(message: str, said: str) -> None:
    assert said == in_words_of_shell(message, FLAGS)


def test_flags_are_the_options_of_a_command_without_its_arguments() -> None:
    assert {one.name for one in fields(ExtractOptions)} - {"input"} == set(flags_of(ExtractOptions))
    assert "model" not in flags_of(ServeOptions) | flags_of(ChatOptions)


def test_an_output_that_exists_is_told_in_flags(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("Hello\n", encoding="utf-8")
    (tmp_path / "s.json").write_text('{"type": "boolean"}', encoding="utf-8")
    output = tmp_path / "o.jsonl"
    output.write_text("{}\n", encoding="utf-8")
    ran = CliRunner().invoke(app, ["extract", str(tmp_path / "m.txt"), "-s", str(tmp_path / "s.json"), "-o", str(output)])
    assert ran.exit_code == 2
    assert "resume with `--resume`, replace it with `--overwrite`, or name another file" in ran.output
    assert re.search(r"\w=True", ran.output) is None
