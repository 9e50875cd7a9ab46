"""Programs in an engine that is short of room, interrupted, or runs rows one by one."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from outlines_cont import Branch, TokenSet, continuous, control, generate, models, samplers
from outlines_cont.control import Controller, Replay, fixed, fork, gen, label, shared
from outlines_cont.errors import KVBudgetError
from outlines_cont.models import HuggingFaceModel
from tests.fakes import FakeTokenizer, random_model, random_network

_PER_TOKEN = 2 * 2 * 2 * 8 * 8  # two layers, keys and values, two heads of eight float64 each


async def _tree() -> None:
    await fixed("the name")
    place = label()
    await gen(max_tokens=4)
    index = await fork(3)
    await fixed(f" {index} 🙂", following=place)
    text = await gen(max_tokens=5, name="text")
    shared.append("texts", [text])
    if index == 0:
        inner = await fork(2)
        await gen(choice=["yes", "no", f"abc{inner}"])


class _Walk(Controller):
    """Samples, forks, takes back; stops after nine calls."""

    calls = 0

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.calls += 1
        free = Branch(sample_mask=TokenSet.of(range(3, 340)))
        if self.calls == 9:
            return []
        if self.calls == 4:
            return [free, Branch(backtrack=2, sample_mask=TokenSet.of(range(50, 90)))]
        return [Branch(ff_tokens=[[40, 41]])] if self.calls % 3 == 0 else [free]


class _Return(_Walk):
    """The same, but rewinds into its prompt first, and once more later."""

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        branches = super().mid_process(branch_index, last_backtrack, last_append)
        return [Branch(backtrack=1, sample_mask=TokenSet.of(range(50, 90)))] if self.calls in {1, 5} else branches


_PROGRAMS: list[Any] = [_tree, _Walk, _Return]


def _texts(model: HuggingFaceModel, program: Any) -> list[list[str]]:
    made = [program if program is _tree else program() for _ in range(3)]
    started = [
        control.start(model, one, "is" * (seed + 1), sampler=samplers.multinomial(temperature=3.0), rng=seed)
        for seed, one in enumerate(made)
    ]
    results = [one.result().check() for one in started]
    for result in results:
        assert Replay(result.events).texts == dict(enumerate(result.texts))
    return [result.texts for result in results]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_rows_that_run_one_by_one_write_the_same(program: Any) -> None:
    wanted = _texts(random_model(), program)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with mock.patch.object(HuggingFaceModel, "can_stack", new_callable=mock.PropertyMock, return_value=False):
        assert wanted == _texts(model, program)
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes, "nothing but what the cache holds"


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_small_budget_of_keys_and_values_makes_rows_wait_and_changes_nothing(program: Any) -> None:
    wanted = _texts(random_model(), program)
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), kv_budget_bytes=90 * _PER_TOKEN)
    assert wanted == _texts(model, program)


def test_a_program_that_does_not_fit_alone_fails_alone() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), kv_budget_bytes=40 * _PER_TOKEN)

    async def long() -> None:
        await fixed("a" * 60)
        await gen(max_tokens=2)

    (ended,) = control.run(model, long, "the", check=False).forks
    assert isinstance(ended.error, KVBudgetError)
    assert generate.text(model)("the", max_tokens=3)


class _Interrupting:
    """A forward that is interrupted once."""

    def __init__(self, model: HuggingFaceModel, at: int, error: Callable[[], BaseException]) -> None:
        self.forward, self.left, self.error = model.forward, at, error

    def __call__(self, *arguments: Any) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise self.error()
        return self.forward(*arguments)


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_an_interrupt_in_a_step_leaves_the_other_programs_whole(program: Any, at: int) -> None:
    wanted = _texts(random_model(), program)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    assert model.can_stack
    assert model.can_branch
    sampler = samplers.multinomial(temperature=3.0)
    others = [
        control.start(model, program if program is _tree else program(), "is" * (seed + 1), sampler=sampler, rng=seed) for seed in range(3)
    ]

    async def waited_for() -> None:
        await gen(max_tokens=30)

    with mock.patch.object(model, "forward", _Interrupting(model, at, KeyboardInterrupt)):
        with pytest.raises(KeyboardInterrupt):
            control.run(model, waited_for, "the")
        results = [other.result().check() for other in others]
    assert wanted == [result.texts for result in results]
    for result in results:
        assert Replay(result.events).texts == dict(enumerate(result.texts))


def test_an_error_of_the_model_ends_the_forks_that_cause_it() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    assert model.can_stack
    assert model.can_branch
    forward = model.forward

    def picky(input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if 77 in input_ids:
            raise RuntimeError("no 77")
        return forward(input_ids, *arguments)

    def controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        free = Branch(sample_mask=TokenSet.of([40, 41]))
        calls.append(last_append)
        if len(calls) == 1:
            return [Branch(ff_tokens=[[77]]), free]
        return [free] if len(calls) < 9 else []

    calls: list[list[int]] = []
    with mock.patch.object(model, "forward", picky):
        bad, good = control.run(model, controller, "the", check=False).forks
    assert str(bad.error) == "no 77"
    assert (good.finish_reason, good.error) == ("stop", None)


def test_a_task_that_is_cancelled_lets_its_program_go() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())

    async def endless() -> None:
        while True:
            await gen(max_tokens=1)

    async def main() -> control.Result:
        task = asyncio.create_task(control.arun(model, endless, "the", budget=control.Budget(tokens=None)))
        other = asyncio.create_task(control.arun(model, _tree, "is"))
        await asyncio.sleep(0.05)
        task.cancel()
        return await other

    assert len(asyncio.run(main()).check().forks) == 4
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes, "nothing but what the cache holds"


def test_threads_may_run_programs_on_one_model() -> None:
    model = random_model()
    wanted = _texts(model, _tree)
    found: dict[int, list[str]] = {}

    def work(seed: int) -> None:
        sampler = samplers.multinomial(temperature=3.0)
        found[seed] = control.run(model, _tree, "is" * (seed + 1), sampler=sampler, rng=seed).check().texts

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wanted == [found[seed] for seed in range(3)]


def test_a_long_prompt_is_read_in_parts_and_a_slow_start_holds_nobody_up() -> None:
    model = random_model()
    text = continuous(generate.text(model))
    from outlines_cont import engine_of

    engine = engine_of(model)
    usual, engine.max_batch_tokens = engine.max_batch_tokens, 16
    prompt = "abc the name " * 8
    result = control.run(model, _Walk(), prompt).check()
    state = text(prompt, max_tokens=2)
    engine.max_batch_tokens = usual
    assert result.texts == control.run(model, _Walk(), prompt).check().texts
    assert state.rows[0][0].token_ids[-2:] == text(prompt, max_tokens=2).rows[0][0].token_ids[-2:]


@pytest.mark.slow
def test_many_short_programs_with_random_cancellations_leave_nothing_behind() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    draw = random.Random(1)
    before = threading.active_count()
    sizes = []
    for _ in range(25):
        programs = [
            control.start(model, one if (one := draw.choice(_PROGRAMS)) is _tree else one(), "is", rng=draw.randrange(99))
            for _ in range(40)
        ]
        for program in programs:
            program.cancel() if draw.random() < 0.3 else program.result().check()
        del programs, program
        gc.collect()
        sizes.append(len(gc.get_objects()))
    generate.text(model)("the", max_tokens=1)
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes, "nothing but what the cache holds"
    assert sizes[-1] < sizes[2] + 2000
    assert threading.active_count() <= before
