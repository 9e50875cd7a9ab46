"""Hundreds of random operations on a few states, against lists of token ids and full recomputation, under a small budget.

After every step each state still has its ids, and one of them, taken at random, still has its logits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlines_cont import SequenceState, continuous, generate, models
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import assert_close, greedy_ids, next_logits

_TEXTS = st.sampled_from(["the name", "a", " of ", "日🙂", "red green blue", "x" * 9])
_SLOTS = st.integers(0, 5)
# Two layers, keys and values, two heads of size 8 (four in GPT-2), float64.
_BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 8
Ids = list[list[int]]


class States(RuleBasedStateMachine):
    """Six states, and beside each what its rows must be."""

    @initialize(
        family=st.sampled_from(["llama", "mistral", "gpt2"]),
        least=st.sampled_from([1, 8, 1024]),
        reused=st.sampled_from([0, 30, 1000]),
    )
    def begin(self, family: str, least: int, reused: int) -> None:
        self.patch = mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=least, min_view=least))
        self.patch.start()
        tokenizer = FakeTokenizer()
        # What any step needs, old and new keys and values of four rows together, and a good deal less than all states hold.
        self.budget = 900 * _BYTES_PER_TOKEN * (2 if family == "gpt2" else 1)
        self.model: HuggingFaceModel = models.from_transformers(
            random_network(family),
            tokenizer,
            kv_budget_bytes=self.budget,
            prefix_cache_bytes=reused * _BYTES_PER_TOKEN,
        )
        self.model.prefix_cache.min_tokens = 2
        self.encode = tokenizer.encode_inside
        self.write = continuous(generate.text(self.model))
        self.slots: list[tuple[SequenceState, Ids]] = []
        for slot, text in enumerate(["the name", "a", "of", "yes no", "red", "日本"]):
            self.slots.append(self._written(text, [tokenizer.encode(text, add_special_tokens=True)], 1 + slot % 2))
        self.turn = 0

    def _written(self, source: str | SequenceState, rows: Ids, count: int) -> tuple[SequenceState, Ids]:
        with self.model.meter() as meter:
            state = self.write(source, max_tokens=count)
        longer = [[*row, *greedy_ids(self.model, row, count)] for row in rows]
        assert meter.sampled_tokens <= count * len(rows)
        return state, longer

    def teardown(self) -> None:
        self.patch.stop()

    def _put(self, slot: int, state: SequenceState, rows: Ids) -> None:
        if any(len(row) > 60 for row in rows):
            state, rows = state.tokens[..., :20], [row[:20] for row in rows]
        if len(rows) > 4:
            state, rows = state.take([(0, 0)]), rows[:1]
        self.slots[slot] = (state, rows)

    @rule(slot=_SLOTS, target_slot=_SLOTS, count=st.integers(1, 3))
    def generate_more(self, slot: int, target_slot: int, count: int) -> None:
        state, rows = self.slots[slot]
        if all(rows):
            self._put(target_slot, *self._written(state, rows, count))

    @rule(slot=_SLOTS, target_slot=_SLOTS, text=_TEXTS)
    def append(self, slot: int, target_slot: int, text: str) -> None:
        state, rows = self.slots[slot]
        self._put(target_slot, state + text, [[*row, *self.encode(text, row)] for row in rows])

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.integers(1, 25))
    def cut(self, slot: int, target_slot: int, stop: int) -> None:
        state, rows = self.slots[slot]
        self._put(target_slot, state.tokens[..., :stop], [row[:stop] for row in rows])

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.integers(1, 25))
    def cut_text(self, slot: int, target_slot: int, stop: int) -> None:
        state, _ = self.slots[slot]
        cut = state[..., :stop]
        assert [text[:stop] for text in state] == list(cut)
        self._put(target_slot, cut, [list(row.token_ids) for group in cut.rows for row in group])

    @rule(slot=_SLOTS, target_slot=_SLOTS, count=st.integers(1, 3))
    def fork(self, slot: int, target_slot: int, count: int) -> None:
        state, rows = self.slots[slot]
        self._put(target_slot, state.fork(count), [row for row in rows for _ in range(count)])

    @rule(slot=_SLOTS, other=_SLOTS, target_slot=_SLOTS)
    def stack(self, slot: int, other: int, target_slot: int) -> None:
        first, second = self.slots[slot], self.slots[other]
        if first[0].num_samples == second[0].num_samples:
            self._put(target_slot, SequenceState.stack([first[0], second[0]]), [*first[1], *second[1]])

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.integers(0, 9))
    def add_part(self, slot: int, target_slot: int, stop: int) -> None:
        state, rows = self.slots[slot]
        part = state[..., :stop]
        both = state + part
        assert [left + right for left, right in zip(state, part, strict=True)] == list(both)
        spell = self.model.tokenizer.text_bytes
        longer = [list(row.token_ids) for group in both.rows for row in group]
        # A part that begins inside a character is spelled anew, so that it completes no character of what is before it.
        tails = [spell(row.token_ids) for group in part.rows for row in group]
        for row, tail, found in zip(rows, tails, longer, strict=True):
            assert found[: len(row)] == row
            assert 0x80 <= (tail or b"a")[0] < 0xC0 or spell(found) == spell(row) + tail
        self._put(target_slot, both, longer)

    @rule(slot=_SLOTS, target_slot=_SLOTS, which=st.integers(0, 9))
    def take(self, slot: int, target_slot: int, which: int) -> None:
        state, rows = self.slots[slot]
        at = which % len(rows)
        place = divmod(at, state.num_samples)
        self._put(target_slot, state.take([place, place]), [rows[at], rows[at]])

    @rule(slot=_SLOTS, target_slot=_SLOTS, kv=st.booleans())
    def save_and_load(self, slot: int, target_slot: int, kv: bool) -> None:
        state, rows = self.slots[slot]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "state")
            state.save(path, kv=kv)
            self._put(target_slot, SequenceState.load(path, self.model), rows)

    @rule(slot=_SLOTS, target_slot=_SLOTS)
    def drop_cache(self, slot: int, target_slot: int) -> None:
        state, rows = self.slots[slot]
        self._put(target_slot, state.detach_cache(), rows)

    @rule(slot=_SLOTS)
    def a_step_that_breaks_leaves_everything(self, slot: int) -> None:
        state, rows = self.slots[slot]
        if not all(rows):
            return
        forward, calls = self.model.forward, [0]

        def breaking(*arguments: object) -> object:
            calls[0] += 1
            if calls[0] > 1:
                raise RuntimeError("the device is gone")
            return forward(*arguments)  # type: ignore[arg-type]

        self.model.forward = breaking  # type: ignore[assignment,method-assign]
        try:
            states = [self.write(state + "x", max_tokens=9) for _ in range(3)]
        finally:
            del self.model.forward
        errors = [error for state in states for group in state.errors for error in group]
        assert any(isinstance(error, RuntimeError) and "the device is gone" in str(error) for error in errors)

    @rule(slot=_SLOTS)
    def rows_for_which_there_is_no_room_wait(self, slot: int) -> None:
        state = self.write(["the name of the rose " * 6] * 20, max_tokens=1)
        assert state.errors == [[None]] * 20

    @invariant()
    def every_state_is_what_it_was(self) -> None:
        if not hasattr(self, "slots"):
            return
        for state, rows in self.slots:
            assert [list(row.token_ids) for group in state.rows for row in group] == rows
            assert all(cached <= len(row) for cached, row in zip(state.cached.flatten().tolist(), rows, strict=True))
        assert self.model.kv_store.nbytes <= self.budget
        self.turn += 1
        state, rows = self.slots[self.turn % 6]
        for row, logits in zip(rows, state.logits.flatten(0, 1), strict=True):
            if row:
                assert_close(next_logits(self.model, row)[-1], logits, 1e-6)


class First(States):
    """A part of the runs, so that several processes share them; each class draws runs of its own."""


class Second(States):
    """Another part."""


class Third(States):
    """Another part."""


TestFirst, TestSecond, TestThird = First.TestCase, Second.TestCase, Third.TestCase
# The first of three runs is always the simplest one.
TestFirst.settings = TestSecond.settings = TestThird.settings = settings(
    max_examples=3, stateful_step_count=100, deadline=None
)
