"""How far a call has come, told to a callback and shown by a bar."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from outlines_cont import Progress, ProgressBar, continuous, generate, samplers
from outlines_cont.errors import OptionError
from tests.fakes import random_model


def test_a_callback_is_told_of_every_row_that_ends() -> None:
    model, told = random_model(), list[Progress]()
    write = continuous(generate.regex(model, "[ab]{1,9}", end="eos"))
    state = write(["a", "b", "c"], max_tokens=6, on_progress=told.append)
    plain = write(["a", "b", "c"], max_tokens=6)
    assert list(state) == list(plain)
    assert {(p.rows, p.failed) for p in told} == {(3, 0)}
    assert [p.done for p in told] == sorted(p.done for p in told)
    assert [p.tokens for p in told] == sorted(p.tokens for p in told)
    assert [p.is_over for p in told] == [False] * (len(told) - 1) + [True]
    assert told[0].done < 3
    generated = sum(len(row.token_ids) - row.piece.start for (row,) in state.rows if row.piece is not None)
    assert (told[-1].done, told[-1].tokens) == (3, generated)


def test_rows_that_fail_are_counted() -> None:
    model, told = random_model(), list[Progress]()
    too_long = "a" * (model.context_length or 0)
    state = continuous(generate.text(model))(["a", too_long], max_tokens=2, on_progress=told.append)
    assert [error is not None for (error,) in state.errors] == [False, True]
    assert (told[-1].rows, told[-1].done, told[-1].failed) == (2, 2, 1)


def test_plain_calls_streams_tasks_and_searches_tell_as_well() -> None:
    model = random_model()
    for run in (
        lambda tell: generate.text(model)(["a", "b"], max_tokens=3, on_progress=tell),
        lambda tell: list(generate.text(model).stream("a", max_tokens=3, on_progress=tell)),
        lambda tell: list(continuous(generate.text(model)).stream(["a"], max_tokens=3, on_progress=tell)),
        lambda tell: asyncio.run(generate.text(model).acall("a", max_tokens=3, on_progress=tell)),
        lambda tell: generate.text(model, sampler=samplers.beam_search(2))("a", max_tokens=3, on_progress=tell),
    ):
        told = list[Progress]()
        run(told.append)
        assert told[-1].is_over
        assert told[-1].done == told[-1].rows > 0
        assert not any(progress.is_over for progress in told[:-1])


def test_an_error_of_the_callback_ends_the_call_and_loses_nothing() -> None:
    model = random_model()

    def tell(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate.text(model)("a", max_tokens=3, on_progress=tell)
    assert generate.text(model)("a", max_tokens=3) == generate.text(model)("a", max_tokens=3)
    with pytest.raises(OptionError, match="expected a function, or `ProgressBar\\(\\)`"):
        generate.text(model)("a", on_progress=3)  # type: ignore[arg-type]


def test_a_bar_is_shown_on_a_terminal_only_and_goes_when_the_call_is_interrupted() -> None:
    model, shown, hidden = random_model(), io.StringIO(), io.StringIO()
    bar = ProgressBar("letters", console=Console(file=shown, force_terminal=True, width=120))
    generate.text(model)(["a", "b"], max_tokens=3, on_progress=bar)
    assert "letters" in shown.getvalue()
    assert "2/2" in shown.getvalue()
    assert "1 failed" not in shown.getvalue()
    assert "tokens/s" in shown.getvalue()
    generate.text(model)("a", max_tokens=3, on_progress=ProgressBar(console=Console(file=hidden)))
    assert hidden.getvalue() == ""
    steps = continuous(generate.text(model)).stream("a", max_tokens=3, on_progress=bar)
    events = iter(steps)
    next(events)
    assert bar._bar is not None
    steps.close()
    assert bar._bar is None
