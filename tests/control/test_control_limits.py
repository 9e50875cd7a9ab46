"""Budgets: each limit has its own error, and ends what has come to it, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from outlines_cont import Branch, TokenSet, control, samplers
from outlines_cont.control import Budget, fixed, fork, gen, log, shared
from outlines_cont.errors import (
    BudgetError,
    CallbackTimeout,
    ForkBudgetError,
    KVShareError,
    ProgramTimeout,
    StepBudgetError,
    TokenBudgetError,
)
from tests.fakes import random_model


async def _writes() -> None:
    await gen(max_tokens=5)


def _beside(script: Callable[..., Any], budget: Budget) -> control.Result:
    """Run a program beside one that is the same as alone."""
    model = random_model()
    alone = control.run(model, _writes, "the").check().texts
    program = control.start(model, script, "the", budget=budget)
    neighbour = control.start(model, _writes, "the")
    result = program.result()
    assert alone == neighbour.result().check().texts
    return result


def _check(result: control.Result, kind: type[BudgetError], index: int = 0) -> BudgetError:
    ended = result.forks[index]
    assert isinstance(ended.error, kind)
    assert kind.limit == ended.finish_reason
    assert f"Budget({kind.limit}=)" in str(ended.error)
    assert ended.state is not None
    assert ended.state.rows[0][0].kv is None
    return ended.error


def test_tokens_of_all_forks_together() -> None:
    async def script() -> None:
        await fixed("ab")
        await fork(2)
        await gen(max_tokens=50)

    result = _beside(script, Budget(tokens=9))
    appended = [len(ended.state.rows[0][0].token_ids) - 2 for ended in result.forks if ended.state is not None]
    fixed_tokens = len("ab")  # it goes on with the word of the prompt, and so is spelled by its bytes
    assert sum(appended) - fixed_tokens == 9
    error = _check(result, TokenBudgetError)
    assert (error.allowed, error.reached) == (9, 10)
    _check(result, TokenBudgetError, 1)


def test_forks_at_once() -> None:
    async def script() -> None:
        if await fork(3) == 1:
            await fork(3)

    result = _beside(script, Budget(forks=4))
    assert len(result.forks) == 3
    assert _check(result, ForkBudgetError, 1).reached == 5
    assert [ended.finish_reason for ended in result.forks] == ["stop", "forks", "stop"]

    async def one_after_the_other() -> None:
        for _ in range(6):
            if await fork(2):
                return
            await gen(max_tokens=1)

    assert len(_beside(one_after_the_other, Budget(forks=2)).check().forks) == 7


def test_forks_of_a_controller() -> None:
    result = _beside(lambda *_: [Branch(sample_mask=TokenSet.all)] * 5, Budget(forks=4))
    assert _check(result, ForkBudgetError).reached == 5


async def _empty_pieces() -> None:
    while True:
        assert await gen(regex="", max_tokens=4) == ""


def test_steps_end_a_script_that_writes_nothing() -> None:
    result = _beside(_empty_pieces, Budget(steps=20))
    error = _check(result, StepBudgetError)
    assert (error.allowed, error.reached) == (20, 21)
    assert result.text == ""
    assert "in _empty_pieces" in result.forks[0].trace  # where it was, as Python prints it

    async def nothing_fixed() -> None:
        while True:
            await fixed("")

    assert _check(_beside(nothing_fixed, Budget()), StepBudgetError).reached == 100_001


def test_steps_of_all_forks_together_and_none_for_what_is_replayed() -> None:
    async def script() -> None:
        for _ in range(6):
            await fixed("a")
        if await fork(2):
            await fixed("b")
        await fixed("c")

    assert len(control.run(random_model(), script, "the", budget=Budget(steps=10)).forks) == 2
    result = _beside(script, Budget(steps=9))
    assert [ended.finish_reason for ended in result.forks] == ["stop", "steps"]


def test_a_script_that_catches_the_error_of_its_steps_ends_at_its_next_await() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await fixed("a")
            except StepBudgetError:
                log("caught")
            finally:
                shared.set("closed", True)

    result = _beside(stubborn, Budget(steps=3))
    _check(result, StepBudgetError)
    assert (result.text, result.log, result.shared) == ("aaa", "caught\n", {"closed": True})

    async def polite() -> None:
        try:
            await stubborn_once()
        except StepBudgetError:
            log("so far")

    async def stubborn_once() -> None:
        while True:
            await fixed("a")

    result = _beside(polite, Budget(steps=3)).check()
    assert (result.text, result.log) == ("aaa", "so far\n")


def test_steps_of_a_controller_are_its_calls() -> None:
    def rewrites(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        return [Branch(backtrack=len(last_append), sample_mask=TokenSet.of([40]))]

    result = _beside(rewrites, Budget(steps=8, tokens=None))
    assert _check(result, StepBudgetError).reached == 9
    assert len(result.text) == 1


def test_seconds_of_one_call() -> None:
    go_on = threading.Event()

    class Slow(control.Controller):
        calls = 0

        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            self.calls += 1
            if self.calls == 1:
                return [Branch(sample_mask=TokenSet.of([40]))] * 3
            if branch_index == 1:
                go_on.wait(60)
            return []

    result = _beside(Slow(), Budget(callback_seconds=0.2))
    go_on.set()
    # The call is left behind in its thread; the fork after it is asked in another one.
    assert [ended.finish_reason for ended in result.forks] == ["stop", "callback_seconds", "stop"]
    assert _check(result, CallbackTimeout, 1).reached > 0.2


def test_seconds_of_the_whole_program() -> None:
    def endless(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        return [Branch(backtrack=len(last_append), sample_mask=TokenSet.of([40]))]

    assert _check(_beside(endless, Budget(seconds=0.2, tokens=None)), ProgramTimeout).reached > 0.2
    go_on = threading.Event()

    async def hangs() -> None:
        go_on.wait(60)

    result = _beside(hangs, Budget(seconds=0.2))
    go_on.set()
    assert _check(result, ProgramTimeout).reached > 0.2


def test_bytes_of_keys_and_values() -> None:
    model = random_model()
    control.run(model, _writes, "the")
    per_token = 2 * 2 * 2 * 8 * 8  # two layers, keys and values, two heads of eight float64 each

    async def script() -> None:
        await fixed("the name of the")
        await fork(3)
        await gen(max_tokens=12)

    prefix = len(model.tokenizer.encode("the", add_special_tokens=True) + model.tokenizer.encode("the name of the"))
    enough = Budget(kv_bytes=(prefix + 3 * 12) * per_token)
    sampler = samplers.multinomial(temperature=9.0)
    assert control.run(model, script, "the", budget=enough, sampler=sampler, rng=1).check()
    few = Budget(kv_bytes=(prefix + 2 * 12 + 2) * per_token)
    result = control.run(model, script, "the", budget=few, sampler=sampler, rng=1, check=False)
    assert [ended.finish_reason for ended in result.forks] == ["stop", "stop", "kv_bytes"]
    assert _check(result, KVShareError, 2).reached > few.kv_bytes  # type: ignore[operator]
