"""Weights and log-probabilities after any chain of operations, against a plain account kept beside it, token by token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Branch, Policy, RowView, SequenceState, continuous, generate, samplers
from outlines_cont.policies.branch import FREE
from tests.account import Account
from tests.examples import examples
from tests.fakes import random_model
from tests.judged import at_least, judged
from tests.oracle import assert_close, ends_of, next_logits

_TEXTS = st.sampled_from([" of", "the", "é", "//", "", "x"])
# Forced tokens before and behind those that are drawn.
_FORCED = "the name (of|red) rose [a-c](yes|no) the green"
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4)),
        st.tuples(st.just("stop"), st.sampled_from(["e", " ", "an"])),
        st.tuples(st.just("choose"), st.just(0)),
        st.tuples(st.sampled_from(["add", "append", "heal"]), _TEXTS),
        st.tuples(st.sampled_from(["tokens", "characters", "middle", "crop", "cut sum"]), st.integers(1, 9)),
        st.tuples(st.sampled_from(["fork", "stack", "save", "sum"]), st.just(0)),
        st.tuples(st.sampled_from(["resume", "fail"]), st.integers(1, 4)),
        st.tuples(st.just("front"), _TEXTS),
    ),
    min_size=2,
    max_size=7,
)


class Failing(Policy[int]):
    """Raises after some tokens of a piece."""

    def __init__(self, most: int) -> None:
        self.most = most

    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        if state >= self.most:
            raise RuntimeError("the policy fails")
        return FREE


def _row(state: SequenceState) -> Any:
    return state.rows[-1][-1]


def _given(state: SequenceState) -> Account:
    return Account().given(_row(state).token_ids)


def _after(state: SequenceState, account: Account, name: str, value: Any, folder: Path) -> tuple[SequenceState, Account]:
    """Do one operation with a state and with its account."""
    model = random_model()
    drawing = samplers.multinomial(temperature=1.5)
    if name == "write":
        state = continuous(generate.text(model, sampler=drawing))(state, max_tokens=value)
    elif name == "stop":
        state = continuous(generate.text(model, sampler=drawing))(state, max_tokens=5, stop_at=value)
    elif name == "choose":
        state = continuous(generate.choice(model, ["yes", "red rose", "y"], end="eos"))(state)
    elif name == "resume":
        choose = continuous(generate.choice(model, ["yes", "red rose", "y"], exact=False, end="eos", force=False))
        cut = choose(state, max_tokens=value)
        state = choose.resume(cut)
        if _row(cut).finish_reason == "length":  # else nothing is written any more
            account = account.written(_row(cut), model)
    elif name == "fail":
        state = continuous(generate.regex(model, _FORCED, sampler=drawing, policies=[Failing(value)]))(state)
    elif name == "add":
        return state + value, account.given(_row(state + value).token_ids).reset()
    elif name in ("append", "heal"):
        state = state.append(value, boundary="heal" if name == "heal" else "as_is")
        return state, account.given(_row(state).token_ids)
    elif name in ("tokens", "characters"):
        state = state.tokens[: len(account.ids) - value] if name == "tokens" else state[: len(str(state)) - value]
        return state, account.given(_row(state).token_ids)
    elif name == "crop":
        state = state.crop(slice(None, len(str(state)) - value))
        return state, account.given(_row(state).token_ids)
    elif name == "middle":
        state = state[min(value, len(str(state))) :]
        return state, _given(state)  # what they were written after is gone
    elif name == "sum":
        whole = state + state
        return whole, account.joined(account, len(_row(whole).token_ids))
    elif name == "cut sum":
        left = state.tokens[: max(len(account.ids) - value, 1)]
        return (left + state).tokens[: len(_row(left).token_ids)], account.kept(len(_row(left).token_ids))
    elif name == "front":
        front, leading = value + state, 0 if _row(state).starts_inside else _row(state).num_start_tokens
        ids = _row(front).token_ids
        added = Account().given(ids[: len(ids) - len(account.ids) + leading])
        return front, added.joined(account, len(ids)) if value else account
    elif name == "fork":
        return state.fork(2)[:, 1:, :], account
    elif name == "stack":
        return SequenceState.stack([state[..., :3], state]).take([(1, 0)]), account
    else:
        state.save(folder / "state")
        return SequenceState.load(folder / "state", model), account
    return state, account.written(_row(state), model)


@at_least(40)
@settings(max_examples=examples(30), deadline=None)
@given(_OPERATIONS, st.integers(0, 2**32))
def test_weights_and_log_probabilities_are_those_of_a_plain_account(operations: list[tuple[str, Any]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = continuous(generate.text(random_model()))("the name", max_tokens=1, rng=seed)
        account = _given(state.tokens[: state.shape[2] - 1]).written(_row(state), random_model())
        for name, value in operations:
            if len(_row(state).token_ids) not in range(1, 90) or state.errors != [[None]]:
                return
            state, account = _after(state, account, name, value, Path(folder))
            judged()
            account.check(_row(state))
            if account.ids and state.errors == [[None]]:
                assert_close(next_logits(random_model(), account.ids)[-1], state.logits[-1, -1], 1e-6)
            assert account.weight == pytest.approx(float(state.weights), abs=1e-4)
            ends = sum(logprob for _, logprob in account.ends)
            assert (state.end_logprobs.shape, state.end_logprobs.dtype) == (state.weights.shape, torch.float32)
            assert ends == pytest.approx(float(state.end_logprobs), abs=1e-4)


def test_a_weight_is_the_sum_of_the_log_probabilities_shown_and_of_the_ends(tmp_path: Path) -> None:
    write = continuous(generate.regex(random_model(), "[a-z]{1,3}", sampler=samplers.multinomial(8), end="eos"))
    state = write(["the name", "a"], rng=[3, 2], max_tokens=3)
    assert {reason for group in state.finish_reasons for reason in group} >= {"stop"}
    assert (state.end_logprobs < 0).any()
    state.save(tmp_path / "state")
    for one in (
        state,
        SequenceState.load(tmp_path / "state", state.model),
        state.fork(2),
        SequenceState.stack([state, state]),
        state.sort(),
    ):
        assert torch.allclose(one.weights, one.logprobs.nansum(-1) + one.end_logprobs, atol=1e-5)
    assert torch.equal((state + "x").end_logprobs, torch.zeros(2, 8))
    assert torch.equal(state.append("x").end_logprobs, state.end_logprobs)
    assert torch.allclose((state + state).end_logprobs, 2 * state.end_logprobs)
    assert torch.equal(state.tokens[..., :1].end_logprobs, torch.zeros(2, 8))  # the ends are cut


@settings(max_examples=examples(12), deadline=None)
@given(_OPERATIONS, _OPERATIONS, st.integers(0, 2**32))
def test_of_two_rows_joined_every_log_probability_counts_once(
    first: list[tuple[str, Any]], second: list[tuple[str, Any]], seed: int
) -> None:
    """The weights add, wherever in the two rows they began to count."""
    sides = []
    with tempfile.TemporaryDirectory() as folder:
        for operations in (first, second):
            state = continuous(generate.text(random_model()))("the name", max_tokens=2, rng=seed)
            account = _given(state)
            for name, value in operations:
                if len(_row(state).token_ids) not in range(1, 90) or state.errors != [[None]]:
                    return
                state, account = _after(state, account, name, value, Path(folder))
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
    assert float(both.weights) + sum(new) + ends_of(_row(longer)) - ends_of(row) == pytest.approx(float(longer.weights), abs=1e-4)


@pytest.mark.parametrize("text", ["x", "ab", "bc d", "//"])
def test_a_score_is_kept_where_its_last_token_is_spelled_anew(text: str) -> None:
    """What the token that is gone had counted still counts."""
    search = samplers.beam_search(3)
    state = continuous(generate.choice(random_model(), ["red a", "the", "yes"], sampler=search, force=False))("the name")
    healed = state.append(text, boundary="heal")
    assert any(row.token_ids[: len(old.token_ids)] != old.token_ids for row, old in zip(healed.rows[0], state.rows[0], strict=True)) or (
        text == "//"
    )
    assert state.scores.tolist()[0] == pytest.approx(healed.scores.tolist()[0], abs=1e-5)


@settings(max_examples=examples(30), deadline=None)
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


@settings(max_examples=examples(5), deadline=None)
@given(st.integers(0, 9), st.integers(0, 2**32))
def test_the_weight_of_a_row_that_failed_does_not_depend_on_what_is_cached(most: int, seed: int) -> None:
    model = random_model()
    start = continuous(generate.regex(model, "[a-c]{1,3}", force=False, end="eos"))("the name")
    assert start.rows[0][0].logits is not None or start.finish_reasons == [["constraint"]]
    rows = []
    for draft in (None, "lookup"):
        sampler = samplers.multinomial()
        fail = continuous(generate.regex(model, _FORCED, sampler=sampler, policies=[Failing(most)], draft=draft))
        rows += [_row(fail(begun, rng=seed)) for begun in (start, start.detach_cache(), start.append(""))]
    assert rows[0].error is not None
    for row in rows[1:]:
        assert (rows[0].token_ids, rows[0].kinds) == (row.token_ids, row.kinds)
        assert rows[0].logprobs == pytest.approx(row.logprobs, abs=1e-6)
        assert rows[0].weight == pytest.approx(row.weight, abs=1e-6)
