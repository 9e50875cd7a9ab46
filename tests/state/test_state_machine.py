"""Hundreds of random operations on a few states, against plain accounts of their rows and full recomputation, under a small budget.

After every step each state still has its ids, log-probabilities and weights, and one of them, taken at random, still has its logits.
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
from outlines_cont.state.row import StateRow
from tests.account import Account
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import assert_close, greedy_ids, next_logits

_TEXTS = st.sampled_from(["the name", "a", " of ", "日🙂", "red green blue", "x" * 9])
_SLOTS = st.integers(0, 5)
# Two layers, keys and values, two heads of size 8 (four in GPT-2), float64.
_BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 8
Rows = list[Account]


def _flat(state: SequenceState) -> list[StateRow]:
    return [row for group in state.rows for row in group]


class States(RuleBasedStateMachine):
    """Six states, and beside each what its rows must be."""

    @initialize(
        family=st.sampled_from(["llama", "mistral", "gpt2"]), least=st.sampled_from([1, 8, 1024]), reused=st.sampled_from([0, 30, 1000])
    )
    def begin(self, family: str, least: int, reused: int) -> None:
        self.patch = mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=least, min_view=least))
        self.patch.start()
        tokenizer = FakeTokenizer()
        # What any step needs, old and new keys and values of four rows together, and a good deal less than all states hold.
        self.budget = 900 * _BYTES_PER_TOKEN * (2 if family == "gpt2" else 1)
        self.model: HuggingFaceModel = models.from_transformers(
            random_network(family), tokenizer, kv_budget_bytes=self.budget, prefix_cache_bytes=reused * _BYTES_PER_TOKEN
        )
        self.model.prefix_cache.min_tokens = 2
        self.encode = tokenizer.encode_inside
        self.write = continuous(generate.text(self.model))
        self.choice = continuous(generate.choice(self.model, ["the", "then", "name"], end="eos"))
        self.slots: list[tuple[SequenceState, Rows]] = []
        for slot, text in enumerate(["the name", "a", "of", "yes no", "red", "日本"]):
            self.slots.append(self._written(text, [Account().given(tokenizer.encode(text, add_special_tokens=True))], 1 + slot % 2))
        self.turn = 0

    def _written(self, source: str | SequenceState, rows: Rows, count: int) -> tuple[SequenceState, Rows]:
        with self.model.meter() as meter:
            state = self.write(source, max_tokens=count)
        assert meter.sampled_tokens <= count * len(rows)
        for row, found in zip(rows, _flat(state), strict=True):
            assert [*row.ids, *greedy_ids(self.model, row.ids, count)] == list(found.token_ids)
        return state, [row.written(found, self.model) for row, found in zip(rows, _flat(state), strict=True)]

    def teardown(self) -> None:
        self.patch.stop()

    def _put(self, slot: int, state: SequenceState, rows: Rows) -> None:
        if any(len(row.ids) > 60 for row in rows):
            state, rows = state.tokens[..., :20], [row.kept(20) for row in rows]
        if len(rows) > 4:
            state, rows = state.take([(0, 0)]), rows[:1]
        self.slots[slot] = (state, rows)

    @rule(slot=_SLOTS, target_slot=_SLOTS, count=st.integers(1, 3))
    def generate_more(self, slot: int, target_slot: int, count: int) -> None:
        state, rows = self.slots[slot]
        if all(row.ids for row in rows):
            self._put(target_slot, *self._written(state, rows, count))

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.sampled_from([None, "e", "h"]))
    def choose(self, slot: int, target_slot: int, stop: str | None) -> None:
        state, rows = self.slots[slot]
        if all(row.ids for row in rows):
            chosen = self.choice(state, stop_at=stop)
            self._put(target_slot, chosen, [row.written(found, self.model) for row, found in zip(rows, _flat(chosen), strict=True)])

    @rule(slot=_SLOTS, target_slot=_SLOTS, text=_TEXTS)
    def append(self, slot: int, target_slot: int, text: str) -> None:
        state, rows = self.slots[slot]
        longer = [row.given([*row.ids, *self.encode(text, row.ids)]) for row in rows]
        self._put(target_slot, state + text, [row.reset() for row in longer])
        self._put(slot, state.append(text), longer)

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.integers(1, 25))
    def cut(self, slot: int, target_slot: int, stop: int) -> None:
        state, rows = self.slots[slot]
        self._put(target_slot, state.tokens[..., :stop], [row.kept(stop) for row in rows])

    @rule(slot=_SLOTS, target_slot=_SLOTS, stop=st.integers(1, 25))
    def cut_text(self, slot: int, target_slot: int, stop: int) -> None:
        state, rows = self.slots[slot]
        cut = state[..., :stop]
        assert [text[:stop] for text in state] == list(cut)
        self._put(target_slot, cut, [row.given(found.token_ids) for row, found in zip(rows, _flat(cut), strict=True)])

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
        cut = [row.given(found.token_ids) for row, found in zip(rows, _flat(part), strict=True)]
        self._add(slot, target_slot, part, cut)

    @rule(slot=_SLOTS, other=_SLOTS, target_slot=_SLOTS)
    def add_states(self, slot: int, other: int, target_slot: int) -> None:
        part, rows = self.slots[other]
        if part.shape[:2] == self.slots[slot][0].shape[:2]:
            self._add(slot, target_slot, part, rows)

    def _add(self, slot: int, target_slot: int, part: SequenceState, others: Rows) -> None:
        state, rows = self.slots[slot]
        both = state + part
        assert [left + right for left, right in zip(state, part, strict=True)] == list(both)
        spell = self.model.tokenizer.text_bytes
        longer = [list(row.token_ids) for row in _flat(both)]
        # A part that begins inside a character is spelled anew, so that it completes no character of what is before it.
        tails = [spell(row.token_ids) for row in _flat(part)]
        for row, tail, found in zip(rows, tails, longer, strict=True):
            assert found[: len(row.ids)] == row.ids
            assert 0x80 <= (tail or b"a")[0] < 0xC0 or spell(found) == spell(row.ids) + tail
        sums = [row.joined(*more) for row, *more in zip(rows, others, map(len, longer), strict=True)]
        self._put(target_slot, both, sums)

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
        if not all(row.ids for row in rows):
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
            for account, found in zip(rows, _flat(state), strict=True):
                account.check(found)
            assert all(cached <= len(row.ids) for cached, row in zip(state.cached.flatten().tolist(), rows, strict=True))
        assert self.model.kv_store.nbytes <= self.budget
        self.turn += 1
        state, rows = self.slots[self.turn % 6]
        for row, logits in zip(rows, state.logits.flatten(0, 1), strict=True):
            if row.ids:
                assert_close(next_logits(self.model, row.ids)[-1], logits, 1e-6)


class First(States):
    """A part of the runs, so that several processes share them; each class draws runs of its own."""


class Second(States):
    """Another part."""


class Third(States):
    """Another part."""


TestFirst, TestSecond, TestThird = First.TestCase, Second.TestCase, Third.TestCase
# The first of three runs is always the simplest one.
TestFirst.settings = TestSecond.settings = TestThird.settings = settings(max_examples=examples(3), stateful_step_count=60, deadline=None)
