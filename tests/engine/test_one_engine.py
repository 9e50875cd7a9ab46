"""Random calls on six conversations, and generators and programs that go on in the meantime, in one engine under a small budget.

After every step each conversation has its ids, and one of them, taken at random, has its logits; what is written is what is
written alone; at the end nothing is held.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlines_cont import BatchedExecutor, Conversation, Guidance, Mark, SequenceState, engine_of, generate, models, samplers
from outlines_cont.control import Branch, Budget, TokenSet, fixed, fork, gen, label, shared, start
from outlines_cont.errors import ClosedError, InferenceRequired, OptionError, PromptRequired, UnsupportedModel
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import FAMILIES, FakeTokenizer, random_model, random_network, recurrent_network
from tests.oracle import next_logits

_TEXTS = st.sampled_from(["the name", "a", " of ", "日🙂", "red green blue", "x" * 9, ""])
_SLOTS = st.integers(0, 5)
# Most of the drops are the exact ones, whose logits can be compared.
_MODES = ("recompute", "recompute", "shift")
_BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 8
_LONGEST = 60
Marks = list[tuple[Mark, list[int], int, bool]]


def _breaking(*arguments: object) -> None:
    # No mock, which would remember its arguments, and with them keys and values.
    raise KeyboardInterrupt


@dataclass
class Slot:
    """A conversation and what it must be."""

    conversation: Conversation
    ids: list[int] = field(default_factory=list)
    pending: int = 0
    exact: bool = True
    marks: Marks = field(default_factory=list)


async def _script() -> None:
    """A program that chooses, forks, shares and writes."""
    word = await gen(choice=["red", "green", "of"])
    index = await fork(2)
    await shared.append("words", f"{word}{index}")
    await fixed(" of ")
    start = label()
    await gen(regex="[a-d]{2,6}")
    if index:
        await fixed("the end", following=start)


def _controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
    """A program that samples, takes back and forks by tokens."""
    if not last_append:
        return [Branch(sample_mask=TokenSet.of(range(65, 91)))]
    token_id = last_append[-1]
    if len(last_append) > 1:
        return []
    if token_id % 3 == 0:
        return [Branch(backtrack=1, ff_tokens=[[70, 71]])]
    if token_id % 3 == 1 and token_id < 97:
        return [Branch(sample_mask=TokenSet.of(range(97, 110))), Branch(ff_tokens=[[80, 81]])]
    return [Branch(sample_mask=TokenSet.of(range(65, 110)))]


_WRITERS: dict[str, Callable[[HuggingFaceModel, str, int], Iterator[Any]]] = {
    "lookup": lambda model, text, seed: _drafted(model, text, seed, draft="lookup"),
    "model": lambda model, text, seed: _drafted_pattern(model, text, seed, draft=random_model("llama")),
    "text": lambda model, text, seed: generate.text(model, sampler=samplers.multinomial()).stream(text, rng=seed, max_tokens=9),
    "guided": lambda model, text, seed: generate.text(model, sampler=samplers.multinomial()).stream(
        text, rng=seed, max_tokens=7, guidance=Guidance("red of ", 1.5 - seed % 3)
    ),
    "regex": lambda model, text, seed: generate.regex(model, "[a-c]{2}(red|green|blue){1,2}[0-9]{2}").stream(text, rng=seed),
    "json": lambda model, text, seed: generate.json(
        model, {"enum": [{"name": "red", "age": 12}, {"name": "of"}, [1, 2, 3]]}, sampler=samplers.multinomial()
    ).stream(text, rng=seed),
    "script": lambda model, text, seed: _events(model, _script, text, seed),
    "controller": lambda model, text, seed: _events(model, _controller, text, seed),
}


def _drafted(model: HuggingFaceModel, text: str, seed: int, *, draft: Any = None) -> Iterator[Any]:
    """Text that repeats itself, and is guessed."""
    generator = generate.text(model, sampler=samplers.multinomial(temperature=0.6))
    return generator.stream(text, rng=seed, max_tokens=12, draft=draft)


def _drafted_pattern(model: HuggingFaceModel, text: str, seed: int, *, draft: Any = None) -> Iterator[Any]:
    generator = generate.regex(model, "[a-c]{4,9}( red| green)", sampler=samplers.multinomial())
    return generator.stream(text, rng=seed, draft=draft)


def _events(model: HuggingFaceModel, program: Any, text: str, seed: int) -> Iterator[Any]:
    budget = Budget(tokens=24, forks=5)
    started = start(model, program, text, sampler=samplers.multinomial(), rng=seed, budget=budget)
    for _ in started.events():
        yield None
    result = started.result()
    yield [(fork.text, fork.finish_reason) for fork in result.forks]


@dataclass
class Writer:
    """A generator or a program that is on its way, what it has written, and what it writes alone."""

    running: Iterator[Any]
    expected: list[Any]
    written: list[Any] = field(default_factory=list)


class OneEngine(RuleBasedStateMachine):
    """Six places, each with a conversation, and up to three that write."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[Writer] = []

    @initialize(
        family=st.sampled_from([*FAMILIES, "recurrent"]),
        least=st.sampled_from([1, 8, 1024]),
        limit=st.sampled_from([16, 64, 8192]),
        stacks=st.booleans(),
        reused=st.sampled_from([0, 30, 1000]),
        kept=st.sampled_from([2**20, 0]),
    )
    def begin(self, family: str, least: int, limit: int, stacks: bool, reused: int, kept: int) -> None:
        self.patches = [mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=least, min_view=least))]
        if not stacks:
            never = mock.PropertyMock(return_value=False)
            self.patches.append(mock.patch.object(HuggingFaceModel, "can_stack", never))
        for patch in self.patches:
            patch.start()
        self.tokenizer = FakeTokenizer()
        make = recurrent_network if family == "recurrent" else lambda: random_network(family)
        self.alone = models.from_transformers(make(), self.tokenizer)
        self.kinds = [kind for kind in _WRITERS if not self.alone.is_recurrent or kind not in ("lookup", "model")]
        # More than any single conversation needs, and less than six of them.
        per_token = _BYTES_PER_TOKEN * (2 if family == "gpt2" else 1)
        self.budget = None if self.alone.is_recurrent else 400 * per_token
        self.model = models.from_transformers(make(), self.tokenizer, kv_budget_bytes=self.budget, prefix_cache_bytes=reused * per_token)
        self.model.prefix_cache.min_tokens = 2
        engine_of(self.model).max_batch_tokens = self.limit = limit
        self.model.capabilities  # probed before forwards are counted
        self.largest, forward = 0, self.model.forward

        def counted(input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.largest = max(self.largest, input_ids.numel())
            return forward(input_ids, *rest)

        self.model.forward = counted  # type: ignore[method-assign]
        self.executor = BatchedExecutor(self.model, seed=1, kept_logits_bytes=kept)
        self.slots = [self._new(text) for text in ["the name", "a", "of the red", "yes no", "red green blue", "日本"]]
        self.executor.infer()
        for slot in self.slots:
            slot.pending = 0
        self.turn = 0

    def _new(self, text: str) -> Slot:
        ids = self.tokenizer.encode(text, add_special_tokens=True)
        return Slot(self.executor.create(text), ids, len(ids))

    def teardown(self) -> None:
        if not hasattr(self, "executor"):
            return
        for slot in self.slots:
            slot.conversation.close()
        for _ in [*self.writers]:
            self.stop_writing(0)
        gc.collect()
        cache = self.model.prefix_cache
        assert cache.nbytes <= cache.max_bytes
        held = (self.executor.kv_bytes, self.model.kv_store.nbytes, self.executor.conversations)
        assert held == (0, cache.nbytes, [])
        for patch in self.patches:
            patch.stop()

    def _put(self, at: int, slot: Slot) -> None:
        old = self.slots[at]
        if old is not slot:
            old.conversation.close()
            with pytest.raises(ClosedError):
                old.conversation.sample()
        self.slots[at] = slot

    @rule(at=_SLOTS, text=_TEXTS)
    def prompt_text(self, at: int, text: str) -> None:
        slot = self.slots[at]
        if len(slot.ids) > _LONGEST:
            return
        new = self.tokenizer.encode_inside(text, slot.ids) if slot.ids else self.tokenizer.encode(text, add_special_tokens=True)
        slot.conversation.prompt(text)
        slot.ids, slot.pending = slot.ids + new, slot.pending + len(new)

    @rule(at=_SLOTS, token_ids=st.lists(st.integers(0, 350), max_size=9))
    def prompt_ids(self, at: int, token_ids: list[int]) -> None:
        slot = self.slots[at]
        if len(slot.ids) <= _LONGEST:
            slot.conversation.prompt(token_ids)
            slot.ids, slot.pending = slot.ids + token_ids, slot.pending + len(token_ids)

    @rule(at=_SLOTS, of=_SLOTS)
    def prompt_state(self, at: int, of: int) -> None:
        source = self.slots[of]
        state = source.conversation.state
        conversation = self.executor.create(state)
        self._put(at, Slot(conversation, [*source.ids], _pending(state)))

    @rule()
    def infer(self) -> None:
        assert sum(slot.pending for slot in self.slots) == self.executor.num_pending
        with self.model.meter() as meter:
            fed = self.executor.infer()
        assert fed + meter.reused_tokens >= sum(slot.pending for slot in self.slots)
        for slot in self.slots:
            slot.pending = 0
        assert self.executor.infer() == 0

    @rule(at=_SLOTS, append=st.booleans())
    def sample(self, at: int, append: bool) -> None:
        slot = self.slots[at]
        if not slot.ids or slot.pending:
            with pytest.raises(InferenceRequired if slot.ids else PromptRequired):
                slot.conversation.sample(samplers.multinomial())
        elif append and len(slot.ids) <= _LONGEST:
            slot.ids = [*slot.ids, slot.conversation.step(samplers.multinomial())]
            slot.pending = 1
        elif slot.exact:
            logits = next_logits(self.alone, slot.ids)[-1]
            assert float(logits[slot.conversation.sample()]) == pytest.approx(float(logits.max()), abs=1e-4)

    @rule(at=_SLOTS, to=_SLOTS, count=st.none() | st.integers(1, 2), same=st.booleans())
    def fork(self, at: int, to: int, count: int | None, same: bool) -> None:
        slot = self.slots[at]
        if at != to:
            forks = slot.conversation.fork(count, same=same) if count else [slot.conversation.fork(same=same)]
            self._put(to, Slot(forks[-1], [*slot.ids], slot.pending, slot.exact, [*slot.marks]))

    @rule(at=_SLOTS, n=st.integers(0, 6))
    def rewind(self, at: int, n: int) -> None:
        slot = self.slots[at]
        for wrong in (-1 - n, len(slot.ids) + 1 + n):
            with pytest.raises(OptionError):
                slot.conversation.rewind(wrong)
        n = min(n, len(slot.ids))
        slot.conversation.rewind(n)
        slot.ids, slot.pending = slot.ids[: len(slot.ids) - n], max(slot.pending - n, 0)
        slot.exact = slot.exact or not slot.conversation.is_approximate
        self._compare(slot)

    @rule(at=_SLOTS)
    def mark(self, at: int) -> None:
        slot = self.slots[at]
        if len(slot.ids) <= _LONGEST:
            mark = slot.conversation.mark()
            assert f"{len(slot.ids)} tokens" in repr(mark)
            slot.marks = [*slot.marks[-2:], (mark, slot.ids, slot.pending, slot.exact)]

    @rule(at=_SLOTS, which=st.integers(0, 2))
    def rewind_to(self, at: int, which: int) -> None:
        slot = self.slots[at]
        if slot.marks:
            mark, slot.ids, slot.pending, slot.exact = slot.marks[which % len(slot.marks)]
            slot.conversation.rewind_to(mark)

    @rule(at=_SLOTS, start=st.integers(0, 6), count=st.integers(0, 3), mode=st.sampled_from(_MODES))
    def drop(self, at: int, start: int, count: int, mode: Literal["recompute", "shift"]) -> None:
        slot = self.slots[at]
        start %= len(slot.ids) + 1
        stop = min(start + count, len(slot.ids))
        try:
            slot.conversation.drop(start, stop, mode=mode)
        except UnsupportedModel:
            assert mode == "shift"
            return
        fed = len(slot.ids) - slot.pending
        slot.pending -= len([i for i in range(start, stop) if i >= fed])
        slot.ids = slot.ids[:start] + slot.ids[stop:]
        slot.exact = not slot.conversation.is_approximate
        self._compare(slot)

    @rule(at=_SLOTS, to=_SLOTS, kv=st.booleans())
    def save_and_load(self, at: int, to: int, kv: bool) -> None:
        slot = self.slots[at]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "saved")
            slot.conversation.save(path, kv=kv)
            loaded = self.executor.load(path)
            # A file has no snapshots of a recurrent model.
            held = int(slot.conversation.state.cached) if kv and not self.alone.is_recurrent else 0
            assert loaded.num_pending in (0, len(slot.ids) - held)
            self._put(to, Slot(loaded, [*slot.ids], loaded.num_pending))

    @rule(at=_SLOTS, text=_TEXTS)
    def close(self, at: int, text: str) -> None:
        self._put(at, self._new(text))

    @rule(kind=st.sampled_from([*_WRITERS]), text=st.sampled_from(["the name", "日🙂", "a"]), seed=st.integers(0, 99))
    def begin_to_write(self, kind: str, text: str, seed: int) -> None:
        if len(self.writers) < 3 and kind in self.kinds:
            plain = {"lookup": _drafted, "model": _drafted_pattern}.get(kind, _WRITERS[kind])
            expected = _seen(plain(self.alone, text, seed))
            self.writers.append(Writer(_WRITERS[kind](self.model, text, seed), expected))

    @rule(which=st.integers(0, 2), steps=st.integers(1, 8))
    def go_on_writing(self, which: int, steps: int) -> None:
        if which >= len(self.writers):
            return
        writer = self.writers[which]
        for _ in range(steps):
            try:
                writer.written.append(next(writer.running))
            except StopIteration:
                assert writer.expected == _seen(iter(writer.written))
                self.writers.pop(which)
                return

    @rule(which=st.integers(0, 2))
    def stop_writing(self, which: int) -> None:
        if which < len(self.writers):
            writer = self.writers.pop(which)
            writer.running.close()  # type: ignore[attr-defined]

    @rule()
    def a_forward_that_breaks_changes_nothing(self) -> None:
        with mock.patch.object(self.model, "forward", _breaking):
            try:
                self.executor.infer()
            except KeyboardInterrupt:
                pass
            else:
                for slot in self.slots:
                    slot.pending = 0

    @invariant()
    def every_conversation_is_what_it_must_be(self) -> None:
        if not hasattr(self, "slots"):
            return
        for slot in self.slots:
            assert (slot.ids, slot.pending) == (slot.conversation.token_ids, slot.conversation.num_pending)
            assert (len(slot.ids), self.tokenizer.decode(slot.ids)) == (len(slot.conversation), slot.conversation.text)
            assert not slot.exact or not slot.conversation.is_approximate
        assert self.budget is None or self.model.kv_store.nbytes <= self.budget
        assert self.largest <= self.limit
        self.turn += 1
        self._compare(self.slots[self.turn % 6], whole=self.turn % 4 == 0)

    def _compare(self, slot: Slot, *, whole: bool = False) -> None:
        """The logits are those of a fresh run."""
        if not slot.ids or not slot.exact:
            return
        expected = next_logits(self.alone, slot.ids)[: len(slot.ids) - slot.pending]
        if whole:
            found = slot.conversation.logits(range(len(expected)))
            assert torch.allclose(expected, found.to(expected), atol=1e-4)
        elif not slot.pending:
            assert torch.allclose(expected[-1], slot.conversation.logits().to(expected), atol=1e-4)


def _pending(state: SequenceState) -> int:
    """What a conversation that begins with a state has yet to feed."""
    row = state.rows[0][0]
    return 0 if row.logits is not None else len(row.token_ids) - int(state.cached)


def _seen(written: Iterator[Any]) -> list[Any]:
    """What matters of a stream: the texts as a whole, and the forks of a program."""
    parts = list(written)
    texts = [part for part in parts if isinstance(part, str)]
    return ["".join(texts), *(part for part in parts if isinstance(part, list))]


TestOneEngine = OneEngine.TestCase
TestOneEngine.settings = settings(max_examples=examples(5), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("family", "limit", "seed"), [("llama", 8192, 0), ("gpt2", 16, 1), ("mistral", 64, 2)])
def test_a_hundred_random_calls(family: str, limit: int, seed: int) -> None:
    """The same calls, each as often as any other; hypothesis leaves some out of most of its runs."""
    rng = np.random.default_rng(seed)
    machine = OneEngine()
    machine.begin(family=family, least=8, limit=limit, stacks=True, reused=200, kept=2**20)
    kinds = [*_WRITERS]
    texts, modes = ["the name", "a", " of ", "日🙂", "x" * 9, ""], ["recompute", "recompute", "shift"]

    def int_below(stop: int) -> int:
        return int(rng.integers(stop))

    calls = [
        lambda: machine.prompt_text(at=int_below(6), text=texts[int_below(6)]),
        lambda: machine.prompt_ids(at=int_below(6), token_ids=rng.integers(0, 351, int_below(6)).tolist()),
        lambda: machine.prompt_state(at=int_below(6), of=int_below(6)),
        machine.infer,
        machine.infer,
        machine.infer,
        lambda: machine.sample(at=int_below(6), append=bool(int_below(2))),
        lambda: machine.fork(at=int_below(6), to=int_below(6), count=int_below(3) or None, same=bool(int_below(2))),
        lambda: machine.rewind(at=int_below(6), n=int_below(6)),
        lambda: machine.mark(at=int_below(6)),
        lambda: machine.rewind_to(at=int_below(6), which=int_below(3)),
        lambda: machine.drop(at=int_below(6), start=int_below(30), count=int_below(5), mode=modes[int_below(3)]),  # type: ignore[arg-type]
        lambda: machine.save_and_load(at=int_below(6), to=int_below(6), kv=bool(int_below(2))),
        lambda: machine.close(at=int_below(6), text=texts[int_below(6)]),
        machine.a_forward_that_breaks_changes_nothing,
        lambda: machine.begin_to_write(kind=kinds[int_below(len(kinds))], text=texts[int_below(2)], seed=int_below(100)),
        lambda: machine.go_on_writing(which=int_below(3), steps=1 + int_below(8)),
        lambda: machine.go_on_writing(which=int_below(3), steps=1 + int_below(8)),
        lambda: machine.stop_writing(which=int_below(9)),
    ]
    for _ in range(100):
        calls[int_below(len(calls))]()
        machine.every_conversation_is_what_it_must_be()
    machine.teardown()
