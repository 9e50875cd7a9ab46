"""What a program refuses: arguments of the wrong kind, before anything runs, each with what to write instead."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from outlines_cont import Branch, Policy, RowView, TokenSet, control, samplers
from outlines_cont.control import Append, Controller, Finish, Forked, Replay, Retract, fixed, gen, label, text_since
from outlines_cont.errors import DeadEnd, IncompleteOutput, OptionError, ScriptError, UnsupportedBranch
from tests.fakes import random_model, saying, scripted_model


async def _script() -> None:
    await fixed("a")


async def _needs(text: str) -> None:
    await fixed(text)


async def _yields() -> AsyncIterator[int]:
    yield 1


class _Stops(Controller):
    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        return []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 5}, r"expected a `Budget` or None as `budget`, got 5\. Write `Budget\("),
        ({"budget": {"tokens": 5}}, "expected a `Budget`"),
        ({"sampler": "greedy"}, "expected a sampler as `sampler`.*got 'greedy'"),
        ({"sampler": samplers.greedy}, r"Write `samplers.greedy\(\)`"),
        ({"shared": {"a": 1}}, r"expected a `Shared` or None as `shared`, got \{'a': 1\}\. Make one with `Shared\(\)`"),
    ],
)
def test_an_argument_of_another_kind(options: dict[str, Any], message: str) -> None:
    for call in (control.start, control.run):
        with pytest.raises(OptionError, match=message):
            call(random_model(), _script, "the", **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lambda: None, "A script is written `async def`.*functools.partial"),
        (lambda: lambda: _needs("a"), "A script is written `async def`.*functools.partial"),
        (lambda: lambda a: [], "It takes other arguments"),
        (lambda: _needs, "It needs arguments: give them with `functools.partial"),
        (lambda: _script(), r"pass `script`, not `script\(\)`"),
        (lambda: _Stops, r"It is a class: call it, `_Stops\(\)`"),
        (lambda: _yields, "`yield`"),
        (lambda: 3, "expected a `Controller`.*got 3"),
    ],
)
def test_what_is_no_controller(make: Callable[[], Any], message: str) -> None:
    with warnings.catch_warnings(), pytest.raises(OptionError, match=message):
        warnings.simplefilter("error")  # a coroutine that nobody awaits
        control.start(random_model(), make(), "the")


@pytest.mark.parametrize(
    ("make", "written"),
    [
        (lambda: partial(_needs, "a"), "a"),
        (lambda: _script, "a"),
        (_Stops, ""),
        (lambda: _Stops().mid_process, ""),
        (lambda: lambda *_: [], ""),
    ],
)
def test_what_is_a_controller_writes_its_text_and_stops(make: Callable[[], Any], written: str) -> None:
    result = control.run(random_model(), make(), "the")
    assert [(written, "stop", None)] == [(fork.text, fork.finish_reason, fork.error) for fork in result.forks]
    assert result.usage.sampled_tokens == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ff_tokens": ["abc"]}, r"expected a list of sequences of token ids as `ff_tokens`.*encode_inside"),
        ({"ff_tokens": "abc"}, "`ff_tokens`"),
        ({"ff_tokens": [b"abc"]}, "`ff_tokens`"),
        ({"ff_tokens": [1, 2]}, r"such as `\[\[17, 4\]\]`"),
        ({"ff_tokens": [["a"] * 99]}, r"\.\.\."),
        ({"temperature": "a"}, "expected a number, 0 or more, or None as `temperature`, got 'a'"),
        ({"sample_mask": [1, 2]}, r"Write `TokenSet.of\(\[1, 2\]\)`"),
        ({"backtrack": "a"}, "expected a number of tokens as `backtrack`, got 'a'"),
    ],
)
def test_a_branch_of_other_kinds(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Branch(**options)


def test_a_branch_of_numpy_numbers() -> None:
    assert Branch(np.int64(0), None, [list(np.array([3, 4]))], np.float32(1.0)).ff_tokens == [[3, 4]]


def test_an_empty_mask_is_the_controllers_own() -> None:
    with pytest.raises(DeadEnd, match="in the `sample_mask` of the controller after .* got an empty `TokenSet`"):
        control.run(random_model(), lambda *_: [Branch(sample_mask=TokenSet.of([]))], "the")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_at": 3}, "expected a text or a list of texts as `stop_at`, got 3"),
        ({"stop_at": [3]}, "`stop_at`"),
        ({"regex": "a", "choice": ["b"]}, "at most one constraint"),
        ({"temperature": -1.0}, "`temperature`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"substring_of": ["a"]}, r"expected a text as `substring_of`, got \['a'\]"),
        ({"substring_of": "a", "substring_end": None}, "expected a text as `substring_end`, got None"),
        ({"choice": "abc"}, r"Write \['abc'\] for a single option"),
        ({"choice": 3}, "list of texts as `choice`"),
        ({"name": 3}, "expected a text as `name`, got 3"),
        ({"regex": 3}, "expected a text as `regex`"),
        ({"grammar": 3}, "expected a text as `grammar`"),
        ({"temperature": "a"}, "as `temperature`, got 'a'"),
        ({"keep_stop": True}, "expected `stop_at` together with `keep_stop`"),
        ({"require_stop": True}, "expected `stop_at` together with `require_stop`"),
    ],
)
def test_an_option_of_gen(options: dict[str, Any], message: str) -> None:
    async def script() -> None:
        await gen(**options)

    with pytest.raises(OptionError, match=message):
        control.run(random_model(), script, "the")


def test_a_label_that_is_none() -> None:
    async def script() -> None:
        with pytest.raises(OptionError, match=r"a label that `label\(\)` has returned as `following`, got 'x'"):
            await fixed("a", following="x")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"a label that `label\(\)` has returned, got 'x'"):
            text_since("x")  # type: ignore[arg-type]
        await fixed("b", following=label())

    assert control.run(random_model(), script, "the").text == "b"
    with pytest.raises(ScriptError, match="expected a script that `control.run` runs"):
        label()


@pytest.mark.parametrize("seconds", [0, 1])
def test_what_an_event_loop_gives_cannot_be_awaited(seconds: int) -> None:
    async def script() -> None:
        await asyncio.sleep(seconds)

    with pytest.raises(ScriptError, match="only functions of `control` can be awaited in it"):
        control.run(random_model(), script, "the")
    with pytest.raises(ScriptError, match="only functions of `control` can be awaited in it"):
        asyncio.run(control.arun(random_model(), script, "the"))


def test_a_stop_text_may_be_required() -> None:
    model = scripted_model(saying("one; two"))
    seen: list[str] = []

    async def script() -> None:
        seen.append(await gen(stop_at="; ", require_stop=True))
        await fixed("; ")
        # Its own end of text is none of the stop texts.
        with pytest.raises(IncompleteOutput, match=r"expected a text that ends at '; ' or '\\n'.*'two'") as ended:
            await gen(stop_at=["; ", "\n"], require_stop=True)
        seen.append(ended.value.text)

    control.run(model, script, ">")
    assert seen == ["one", "two"]

    async def short(**options: Any) -> None:
        seen.append(await gen(stop_at="; ", max_tokens=2, **options))

    control.run(model, short, ">")
    assert seen[2] == "on"
    with pytest.raises(IncompleteOutput, match="Raise `max_tokens`"):
        control.run(model, partial(short, require_stop=True), ">")


def test_a_replay_of_all_events() -> None:
    result = control.run(random_model(), _script, "the")
    replay = Replay.of(result.events)
    assert replay.texts == {0: "a"}
    assert repr(replay) == "Replay({0: 'a'}, finished={0: 'stop'})"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["x"], r"expected an event, such as `program.events\(\)` yields, got 'x'"),
        ([Append(1, 40, b"a")], "about fork 1, which no `Forked` has begun"),
        ([Finish(2, "stop")], "about fork 2"),
        ([Forked(1, 2)], "about fork 1"),
        ([Retract(0, 1, 1)], "about tokens that were never appended"),
    ],
)
def test_a_replay_of_something_else(events: list[Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Replay.of(events)


class _Forks(Policy[int]):
    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.all)] * (2 if state == 2 else 1)


@pytest.mark.parametrize("of_run", [False, True])
def test_a_policy_that_forks_is_an_error_of_gen_which_a_script_may_catch(of_run: bool) -> None:
    policies = [_Forks()]

    async def script() -> None:
        try:
            await gen(max_tokens=5, policies=[] if of_run else policies)
        except UnsupportedBranch as error:
            await fixed(str(error)[:40])

    model = random_model()
    told = control.run(model, script, "the", policies=policies if of_run else []).text
    assert told.endswith("expected one branch or none from a polic")


def test_a_policy_that_forks_ends_a_script_that_does_not_catch_it() -> None:
    async def script() -> None:
        await gen(max_tokens=5, policies=[_Forks()])

    with pytest.raises(UnsupportedBranch, match=r"or the script before `gen`, `await fork\(n\)`"):
        control.run(random_model(), script, "the")
