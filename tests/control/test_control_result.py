"""What a program gives back: texts of forks that were cancelled, errors that are raised once all have ended, short reprs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from outlines_cont import control, generate, models
from outlines_cont.control import Append, Replay, fixed, fork, gen
from outlines_cont.errors import ProgramCancelled, ScriptError
from outlines_cont.programs.job import ProgramJob
from tests.fakes import FakeTokenizer, random_model, random_network


async def _endless() -> None:
    await fixed("Kind: ")
    await fork(2)
    while True:
        await gen(max_tokens=3, name="last")


@pytest.mark.parametrize("way", ["break", "cancel", "async"])
def test_a_fork_that_was_cancelled_keeps_its_text_and_says_so(way: str) -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    program = control.start(model, _endless, "the")

    async def read() -> None:
        events = program.aevents()
        async for event in events:
            if isinstance(event, Append) and event.fork == 1:
                break
        await events.aclose()

    if way == "async":
        asyncio.run(read())
    else:
        for event in program.events():
            if isinstance(event, Append) and event.fork == 1:
                program.cancel() if way == "cancel" else None
                break

    result = program.result()
    replay = Replay(result.events)
    assert result.texts == [replay.texts[0], replay.texts[1]]
    assert all(text.startswith("Kind: ") and len(text) > 6 for text in result.texts)
    assert replay.finished == {0: "cancelled", 1: "cancelled"}
    assert [ended.finish_reason for ended in result.forks] == ["cancelled"] * 2
    assert all(isinstance(error, ProgramCancelled) for error in result.errors)
    assert [ended.state for ended in result.forks] == [None, None]
    with pytest.raises(ProgramCancelled, match="by leaving the loop") as raised:
        result.check()
    assert raised.value.result is result  # type: ignore[attr-defined]
    assert "error=ProgramCancelled(" in repr(result.forks[0])


def test_a_program_that_was_cancelled_before_it_has_begun() -> None:
    program = control.start(random_model(), _endless, "the")
    program.cancel()
    (ended,) = program.result().forks
    assert (ended.text, ended.finish_reason) == ("", "cancelled")
    assert isinstance(ended.error, ProgramCancelled)
    with pytest.raises(ScriptError, match="got only cancelled ones"):
        assert program.result().state


def test_a_script_that_is_cancelled_in_the_middle_of_a_call_is_closed_when_the_call_has_ended() -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    async def script() -> None:
        try:
            begun.set()
            assert go_on.wait(20)
            await gen(max_tokens=3)
        finally:
            closed.set()

    model = random_model()
    program = control.start(model, script, "the")
    generate.text(model)("the", max_tokens=2)  # its steps call the script
    assert begun.wait(20)
    program.cancel()
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(20)
    (fork,) = program.result().forks
    assert (fork.finish_reason, fork.text) == ("cancelled", "")


def test_cancelling_what_is_over_changes_nothing() -> None:
    async def script() -> None:
        await fixed("a")

    program = control.start(random_model(), script, "the")
    result = program.result().check()
    program.cancel()
    assert (program.result().text, result.forks[0].error) == ("a", None)


async def _one_of_three() -> None:
    if await fork(3) == 1:
        await gen(chioce=["a"])  # type: ignore[call-arg]
    await gen(max_tokens=2)


def test_run_raises_the_first_error_after_all_forks_have_ended() -> None:
    with pytest.raises(TypeError, match="chioce") as raised:
        control.run(random_model(), _one_of_three, "the")
    result = raised.value.result  # type: ignore[attr-defined]
    assert [ended.finish_reason for ended in result.forks] == ["stop", "error", "stop"]
    assert result.errors[1] is raised.value
    with pytest.raises(TypeError, match="chioce"):
        asyncio.run(control.arun(random_model(), _one_of_three, "the"))

    unchecked = [
        control.run(random_model(), _one_of_three, "the", check=False),
        asyncio.run(control.arun(random_model(), _one_of_three, "the", check=False)),
        control.start(random_model(), _one_of_three, "the").result(),
    ]
    for result in unchecked:
        assert isinstance(result.errors[1], TypeError)


def test_an_error_with_slots_is_raised_as_it_is() -> None:
    class Bare(Exception):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    async def script() -> None:
        raise Bare("mine")

    with pytest.raises(Bare, match="mine"):
        control.run(random_model(), script, "the")


def test_reprs_are_short_and_show_errors() -> None:
    result = control.run(random_model(), _one_of_three, "the", check=False)
    assert repr(result).startswith("Result(3 forks, errors: [1: UnknownOption(")
    assert repr(result).endswith(f", {len(result.events)} events)")
    assert len(repr(result)) < 140
    assert "error=UnknownOption(" in repr(result.forks[1])
    assert "error=" not in repr(result.forks[0])

    async def script() -> None:
        await fixed("a")

    assert repr(control.run(random_model(), script, "the")).startswith("Result(1 fork, ")


def test_a_program_is_over_when_its_last_fork_is_recorded_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks and threads read whether it is over without the lock of the engine, and then its forks."""
    end_fork, seen = ProgramJob._end_fork, list[bool]()

    def noted(job: ProgramJob, *given: Any) -> None:
        end_fork(job, *given)
        seen.append(job.is_over)

    monkeypatch.setattr(ProgramJob, "_end_fork", noted)

    async def script() -> None:
        await fork(2)
        await fixed("a")

    assert control.run(random_model(), script, "the").texts == ["a", "a"]
    assert seen == [False, False]
