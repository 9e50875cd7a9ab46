"""Weights and log-probabilities after any chain of operations, against a plain account kept beside it, token by token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.state.row import FORCED, GENERATED
from tests.fakes import random_model
from tests.judged import at_least, judged
from tests.oracle import ends_of, rescored

_WRITTEN = (GENERATED[0], FORCED[0])
_TEXTS = st.sampled_from([" of", "the", "é", "//", "", "x"])
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("stop"), st.sampled_from(["e", " ", "an"])),
        st.tuples(st.just("choose"), st.just(0)),
        st.tuples(st.sampled_from(["add", "append", "heal"]), _TEXTS),
        st.tuples(st.sampled_from(["tokens", "characters", "middle"]), st.integers(1, 9)),
        st.tuples(st.sampled_from(["fork", "stack", "save"]), st.just(0)),
    ),
    min_size=2,
    max_size=7,
)


class Account:
    """The log-probability of every token, from which token on they count, and what counts beside them."""

    def __init__(self, state: SequenceState) -> None:
        self.ids = list(_row(state).token_ids)
        self.logprobs = [0.0] * len(self.ids)
        self.start, self.ends = 0, 0.0

    @property
    def weight(self) -> float:
        return sum(self.logprobs[self.start :]) + self.ends

    def follow(self, state: SequenceState) -> None:
        """Take in what a piece has written; tokens that it took back are gone."""
        row = _row(state)
        self.keep(_common(self.ids, row.token_ids))
        scores = rescored(random_model(), row.token_ids)
        for at in range(len(self.ids), len(row.token_ids)):
            self.logprobs.append(scores[at] if row.kinds[at] in _WRITTEN else 0.0)
        self.ids = list(row.token_ids)
        self.ends += ends_of(row) - self.ends

    def keep(self, count: int) -> None:
        """Only the first tokens are left."""
        if count < len(self.ids):
            self.ends = 0.0
        del self.ids[count:], self.logprobs[count:]
        self.start = min(self.start, count)

    def change(self, state: SequenceState) -> None:
        """What both have in common is kept, what is new was given."""
        row = _row(state)
        self.keep(_common(self.ids, row.token_ids))
        self.logprobs += [0.0] * (len(row.token_ids) - len(self.ids))
        self.ids = list(row.token_ids)


def _row(state: SequenceState) -> Any:
    return state.rows[-1][-1]


def _common(left: Any, right: Any) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def _after(state: SequenceState, account: Account, name: str, value: Any, folder: Path) -> SequenceState:
    """Do one operation with a state and with its account."""
    model = random_model()
    drawing = samplers.multinomial(temperature=1.5)
    if name == "write":
        state = continuous(generate.text(model, sampler=drawing))(state, max_tokens=value)
        account.follow(state)
    elif name == "stop":
        state = continuous(generate.text(model, sampler=drawing))(state, max_tokens=5, stop_at=value)
        account.follow(state)
    elif name == "choose":
        state = continuous(generate.choice(model, ["yes", "red rose", "y"]))(state)
        account.follow(state)
    elif name == "add":
        state = state + value
        account.change(state)
        account.start, account.ends = len(account.ids), 0.0
    elif name in ("append", "heal"):
        state = state.append(value, boundary="heal" if name == "heal" else "as_is")
        account.change(state)
    elif name in ("tokens", "characters"):
        state = state.tokens[: len(account.ids) - value] if name == "tokens" else state[: len(str(state)) - value]
        account.change(state)
    elif name == "middle":
        state = state[min(value, len(str(state))) :]
        account.__init__(state)  # type: ignore[misc]  # what they were written after is gone
    elif name == "fork":
        state = state.fork(2)[:, 1:, :]
    elif name == "stack":
        state = SequenceState.stack([state[..., :3], state]).take([(1, 0)])
    else:
        state.save(folder / "state")
        state = SequenceState.load(folder / "state", model)
    return state


@at_least(40)
@settings(max_examples=30, deadline=None)
@given(_OPERATIONS, st.integers(0, 2**32))
def test_weights_and_log_probabilities_are_those_of_a_plain_account(
    operations: list[tuple[str, Any]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = continuous(generate.text(random_model()))("the name", max_tokens=1, rng=seed)
        account = Account(state.tokens[: state.shape[2] - 1])
        account.follow(state)
        for name, value in operations:
            if not _row(state).token_ids or state.errors != [[None]]:
                return
            state = _after(state, account, name, value, Path(folder))
            row = _row(state)
            judged()
            assert account.ids == list(row.token_ids)
            assert account.logprobs == pytest.approx(list(row.logprobs), abs=1e-6)
            assert account.weight == pytest.approx(row.weight, abs=1e-6), name
            assert account.weight == pytest.approx(float(state.weights), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(_OPERATIONS, _OPERATIONS, st.integers(0, 2**32))
def test_of_two_rows_joined_every_log_probability_counts_once(
    first: list[tuple[str, Any]], second: list[tuple[str, Any]], seed: int
) -> None:
    """The weights add, wherever in the two rows they began to count."""
    sides = []
    with tempfile.TemporaryDirectory() as folder:
        for operations in (first, second):
            state = continuous(generate.text(random_model()))("the name", max_tokens=2, rng=seed)
            account = Account(state)
            for name, value in operations:
                if not _row(state).token_ids or state.errors != [[None]]:
                    return
                state = _after(state, account, name, value, Path(folder))
            sides.append(state)
    if any(state.errors != [[None]] for state in sides):
        return
    left, right = sides
    both = left + right
    assert float(left.weights) + float(right.weights) == pytest.approx(float(both.weights), abs=1e-4)
    row = _row(both)
    opening = len(_row(left).token_ids) + len(_row(right).token_ids) - len(row.token_ids)
    if len(_row(left).token_ids) > opening:
        assert [*_row(left).logprobs, *_row(right).logprobs[opening:]] == pytest.approx(list(row.logprobs), abs=1e-6)
    # A piece that is written after the sum adds its own.
    longer = continuous(generate.text(random_model()))(both, max_tokens=3)
    new = list(_row(longer).logprobs)[len(row.token_ids) :]
    assert float(both.weights) + sum(new) + ends_of(_row(longer)) - ends_of(row) == pytest.approx(
        float(longer.weights), abs=1e-4
    )


@pytest.mark.parametrize("text", ["x", "ab", "bc d", "//"])
def test_a_score_is_kept_where_its_last_token_is_spelled_anew(text: str) -> None:
    """What the token that is gone had counted still counts."""
    search = samplers.beam_search(3)
    state = continuous(generate.choice(random_model(), ["red a", "the", "yes"], sampler=search, force=False))(
        "the name"
    )
    healed = state.append(text, boundary="heal")
    assert any(
        row.token_ids[: len(old.token_ids)] != old.token_ids
        for row, old in zip(healed.rows[0], state.rows[0], strict=True)
    ) or (text == "//")
    assert state.scores.tolist()[0] == pytest.approx(healed.scores.tolist()[0], abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["[a-c]?", "(x|)", "e{0,2}"]), min_size=1, max_size=3), st.integers(0, 2**32))
def test_an_end_that_was_sampled_counts_where_nothing_was_written(patterns: list[str], seed: int) -> None:
    """Rows that may be empty but for their beginning: in a sum of states weights and ends add, on either side."""
    model = random_model()
    total, parts = None, []
    for number, pattern in enumerate(patterns):
        sampler = samplers.multinomial(temperature=1.5, logit_bias={1: 40.0} if number % 2 == seed % 2 else None)
        state = continuous(generate.regex(model, pattern, sampler=sampler))("", rng=seed + number)
        row = _row(state)
        assert ends_of(row) != 0 or str(state)
        assert sum(row.logprobs) + ends_of(row) == pytest.approx(float(state.weights), abs=1e-4)
        parts.append(float(state.weights))
        total = state if total is None else total + state
        assert sum(parts) == pytest.approx(float(total.weights), abs=1e-4)
        assert sum(parts) == pytest.approx(float((total + state.tokens[:0]).weights), abs=1e-4)
