"""Options at the bounds of their ranges: the bound itself is taken, what is just beyond is refused, and the option is named."""

from __future__ import annotations

import inspect
import warnings

import pytest

from outlines_cont import (
    DEFAULT_MAX_TOKENS,
    continuous,
    generate,
    policies,
)
from outlines_cont.cli.__main__ import extract
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.errors import IncompleteOutput, LengthWarning
from outlines_cont.generation.options import checked_policies
from tests.fakes import random_model


def test_a_piece_has_a_length_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by a limit that nobody gave, a text says so; by one that was given, or by the context, it does not."""
    monkeypatch.setattr("outlines_cont.generation.options.DEFAULT_MAX_TOKENS", 5)
    model = random_model()
    write = continuous(generate.regex(model, "[ab]{30,}"))
    with pytest.warns(LengthWarning, match="2 of 2 texts were cut after 5 tokens") as told:
        cut = write(["a", "b"])
    assert __file__ == told[0].filename  # the line of the user
    with pytest.warns(LengthWarning, match="1 of 1 texts"):
        more = write.resume(cut.take([(0, 0)]))
    assert [len(row.token_ids) for row in (cut.rows[0][0], more.rows[0][0])] == [7, 12]
    with pytest.warns(LengthWarning), pytest.raises(IncompleteOutput, match="Raise `max_tokens`"):
        generate.regex(model, "[ab]{30,}")("a")
    with pytest.warns(LengthWarning, match="cut after 7 tokens"):  # `min_tokens` wants more
        write("a", min_tokens=7)
    with warnings.catch_warnings(action="error"):
        assert write("a", max_tokens=5).finish_reasons == [["length"]]
        assert write("a", max_tokens=None).finish_reasons == [["stop"]]
        assert continuous(generate.regex(model, "[ab]{4}"))("a").finish_reasons == [["constraint"]]


def test_the_command_line_has_the_same_length() -> None:
    assert inspect.signature(extract).parameters["max_tokens"].default == DEFAULT_MAX_TOKENS == 1024
    assert ExtractOptions(input="", schema="").max_tokens == DEFAULT_MAX_TOKENS


def test_one_policy_needs_no_list_and_a_text_is_none() -> None:
    ban = policies.ban("a")
    assert checked_policies(ban) == checked_policies([ban]) == checked_policies((ban,)) == (ban,)
