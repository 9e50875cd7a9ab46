"""`re_parser`: the private parser of `re`, and what is said where a version of Python has changed it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fsm.errors import FSMError, UnsupportedPython
from fsm.pattern.python_pattern import re_parser


def test_the_parser_of_this_python_is_the_one_that_is_known() -> None:
    assert importlib.import_module("re._parser") is re_parser()


def without_a_name(parser: Any) -> None:
    del parser.POSSESSIVE_REPEAT


def with_a_part_read_twice(parser: Any) -> None:
    parse = parser.parse

    def changed(pattern: str, flags: re.RegexFlag) -> Any:
        parsed = parse(pattern, flags)
        parsed.data[3:4] *= 2
        return parsed

    parser.parse = changed


def with_other_arguments(parser: Any) -> None:
    parse = parser.parse
    parser.parse = lambda pattern: parse(pattern)


def with_other_flags(parser: Any) -> None:
    parse = parser.parse
    parser.parse = lambda pattern, flags: parse(pattern, re.ASCII)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without_a_name, "`POSSESSIVE_REPEAT` is missing"),
        (with_a_part_read_twice, "expected ('MAX_REPEAT'"),
        (with_other_arguments, "TypeError"),
        (with_other_flags, "expected the flags 32"),
    ],
)
def test_a_changed_parser_is_named_with_the_version_and_what_to_do(
    change: Callable[[Any], None], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = SimpleNamespace(**vars(importlib.import_module("re._parser")))
    change(changed)
    monkeypatch.setitem(sys.modules, "re._parser", changed)
    with pytest.raises(UnsupportedPython, match=re.escape(fault)) as caught:
        re_parser()
    message = str(caught.value)
    assert ".".join(map(str, sys.version_info[:3])) in message
    assert "or a newer release of outlines-cont" in message
    assert isinstance(caught.value, FSMError)
    assert isinstance(caught.value, ImportError)


def test_a_python_without_the_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re._parser", None)
    with pytest.raises(UnsupportedPython, match=r"re\._parser"):
        re_parser()
