"""Rejection sampling of values that fail a check: the distribution is that of the texts that pass, by enumeration of all texts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from fsm import json_schema
from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import CheckFailed, OptionError
from outlines_cont.models import CallableModel
from outlines_cont.policies import CheckedConstraint
from tests.fakes import EOS, VOCAB_SIZE, FakeTokenizer

_ONE = {"enum": [1, 2, 3]}
# An automaton does not count items by place and value, so that this is checked.
_ITEMS = {"type": "array", "prefixItems": [_ONE], "items": _ONE, "minItems": 2, "maxItems": 3, "uniqueItems": True}
_TWO = {"enum": [1, 2]}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "items": _ITEMS,
    # Where it ends, and only there, the check fails.
    "numbers": {"type": "integer", "minimum": 1, "maximum": 130, "allOf": [{"not": {"multipleOf": n}} for n in (4, 6, 9, 15)]},
    "nested": {
        "type": "array",
        "items": _ITEMS | {"prefixItems": [_TWO], "items": _TWO, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
}
_LOGITS = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 1.5
_PROMPT = [7]


@pytest.fixture(scope="module")
def model() -> CallableModel:
    """One whose next token depends on the last one."""
    return models.from_callable(lambda ids: _LOGITS[ids].numpy(), FakeTokenizer())


def _texts(constraint: CheckedConstraint) -> dict[tuple[int, ...], float]:
    """The probability of every text (the ids) that the automaton allows, drawn token by token under its masks."""
    fsm, found, todo = constraint.token_fsm, dict[tuple[int, ...], float](), [((), constraint.token_fsm.initial_state, 0.0)]
    while todo:
        ids, state, logprob = todo.pop()  # type: ignore[var-annotated]
        allowed = torch.from_numpy(fsm.allowed_token_ids(state).copy()).long()
        after = _LOGITS[[*_PROMPT, *ids][-1]][allowed].double().log_softmax(0) if len(allowed) > 1 else torch.zeros(1)
        for token_id, line in zip(allowed.tolist(), after.tolist(), strict=True):
            if token_id == EOS:
                found[ids] = math.exp(logprob + line)
            else:
                todo.append(((*ids, token_id), fsm.next_state(state, token_id), logprob + line))
    assert sum(found.values()) == pytest.approx(1)
    return found


def _written(state: SequenceState) -> list[tuple[int, ...]]:
    """The ids of every row after the prompt."""
    return [tuple(row.token_ids[len(_PROMPT) :]) for row in state.rows[0]]


def _distance(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    total = counts.total()
    return sum(abs(counts[ids] / total - law.get(ids, 0.0)) for ids in {*counts, *law}) / 2


@pytest.mark.parametrize("name", _SCHEMAS)
def test_what_passes_has_the_distribution_of_the_texts_that_pass(model: CallableModel, name: str) -> None:
    schema, sampler = _SCHEMAS[name], samplers.multinomial(60)
    made = generate.json(model, schema, sampler=sampler, force=False, max_retries=2000, max_rejections=2000)
    constraint: Any = made.constraint
    every = _texts(constraint)
    law = {ids: share for ids, share in every.items() if constraint.accepts(ids)}
    passing = sum(law.values())
    assert len(law) < len(every)
    assert 0.01 < passing < 0.7
    if name == "nested":  # each value is drawn after the text before it
        law = _chained(model, constraint, every)
        passing = sum(law.values())
    law = {ids: share / passing for ids, share in law.items()}
    states = [continuous(made)(_PROMPT, max_tokens=60, rng=seed) for seed in range(1 if name == "nested" else 2)]
    assert all(torch.equal(state.retries, state.rejections) for state in states)
    found = Counter(ids for state in states for ids in _written(state))
    # Draws of the law itself are as far from it.
    texts = list(law)
    shares, generator = torch.tensor([law[ids] for ids in texts]), torch.Generator().manual_seed(1)
    drawn = torch.multinomial(shares, found.total(), replacement=True, generator=generator)
    noise = _distance(Counter(texts[i] for i in drawn.tolist()), law)
    assert _distance(found, law) < 1.6 * noise + 0.01
    # With few rejections it is another one, where few texts pass.
    for most in (0, 4):
        few = continuous(generate.json(model, schema, sampler=samplers.multinomial(20), force=False, max_retries=2000, max_rejections=most))
        other = few(_PROMPT, max_tokens=60, rng=3)
        assert (other.retries > other.rejections).any() or passing > 0.5
        assert int(other.rejections.max()) <= most
        assert all(constraint.accepts(ids) for ids in _written(other))


def _chained(model: CallableModel, constraint: CheckedConstraint, every: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The law of two values one after the other, each of those that pass, after the text before it."""

    def head(ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids up to the token in which the first value ends."""
        text = model.tokenizer.text_bytes(ids)
        first = text.index(b"]") + 1
        return next(ids[:n] for n in range(len(ids) + 1) if len(model.tokenizer.text_bytes(ids[:n])) >= first)

    first_value = json_schema(_SCHEMAS["nested"]["items"])

    def passes(ids: tuple[int, ...]) -> bool:
        first = model.tokenizer.text_bytes(ids)
        return first_value.accepts(first[1 : first.index(b"]") + 1].decode())

    heads, ends = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for ids, share in every.items():
        if passes(ids):
            heads[head(ids)] += share  # type: ignore[assignment]
            ends[head(ids)] += share if constraint.accepts(ids) else 0  # type: ignore[assignment]
    return {ids: share * heads[head(ids)] / ends[head(ids)] for ids, share in every.items() if constraint.accepts(ids)}


def test_rejections_are_counted_and_go_on_where_a_piece_was_cut(model: CallableModel, tmp_path: Any) -> None:
    made = continuous(generate.json(model, _ITEMS, sampler=samplers.multinomial(20), max_rejections=10))
    whole = made(_PROMPT, max_tokens=60, rng=1)
    assert int(whole.rejections.max()) > 4
    assert int(whole.rejections.max()) <= 10
    cut = made(_PROMPT, max_tokens=2, rng=1)
    cut.save(tmp_path / "state")
    loaded = SequenceState.load(tmp_path / "state", model)
    assert torch.equal(loaded.rejections, cut.rejections)
    for begun in (cut, loaded):
        again = made.resume(begun, max_tokens=60)
        assert again == whole
        assert torch.equal(again.rejections, whole.rejections)


def test_a_greedy_row_rejects_nothing(model: CallableModel) -> None:
    state = continuous(generate.json(model, _ITEMS))(_PROMPT, max_tokens=60)
    assert int(state.rejections) == 0


def test_only_rejections_fail_where_they_do_not_suffice(model: CallableModel) -> None:
    made = generate.json(model, _ITEMS, sampler=samplers.multinomial(30), max_retries=2, max_rejections=2)
    state = continuous(made)(_PROMPT, max_tokens=60, rng=1)
    failed = [error for error in state.errors[0] if error is not None]
    assert 0 < len(failed) < 30
    assert all(isinstance(error, CheckFailed) for error in failed)
    for wrong in (-1, 51, 1.5):
        with pytest.raises(OptionError, match="from 0 to `max_retries`, 50, as `max_rejections`"):
            generate.json(model, _ITEMS, max_rejections=wrong)  # type: ignore[arg-type]
