"""Beam search and best-of against exhaustive search and a textbook beam search with full recomputation."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import NoHypothesis
from outlines_cont.models import HuggingFaceModel
from tests.fakes import random_model
from tests.oracle import ends_of, next_logits

# Languages with few token sequences, written with tokens of one to four bytes.
_PATTERNS = ["(a|b|ab|bc){1,2}", "(red|re|ed|d)e?", "a{0,4}", "(yes|no) ?(the|an)?", "[abc]{2}x"]

Found = dict[tuple[int, ...], float]


def _continuations(model: HuggingFaceModel, token_fsm: fsm.TokenFSM, prompt: list[int], ids: tuple[int, ...]) -> Found:
    """Every allowed next token of a hypothesis, with the log-probability of the whole; an end is written as -1."""
    state = token_fsm.initial_state
    for token_id in ids:
        state = token_fsm.next_state(state, token_id)
    logprobs = next_logits(model, [*prompt, *ids])[-1].log_softmax(-1).tolist()
    allowed = set(token_fsm.allowed_token_ids(state).tolist())
    if allowed <= model.eos_token_ids:
        return {(*ids, -1): 0.0}
    return {(*ids, -1 if t in model.eos_token_ids else t): logprobs[t] for t in allowed}


def _textbook(
    model: HuggingFaceModel, token_fsm: fsm.TokenFSM, prompt: list[int], beams: int, start: Found, penalty: float
) -> Found:
    """Keep the best `beams` of all ended hypotheses and all continuations, until all that are kept have ended.

    Of several spellings of an ended text the best is kept, those of one that has not ended come after all other texts.
    """
    kept = start
    while any(ids[-1:] != (-1,) for ids in kept):
        pool: Found = {}
        for ids, score in kept.items():
            if ids[-1:] == (-1,):
                pool[ids] = score
            else:
                pool.update({more: score + p for more, p in _continuations(model, token_fsm, prompt, ids).items()})
        ranked = sorted(
            pool.items(), key=lambda item: -item[1] / max(len([i for i in item[0] if i >= 0]), 1) ** penalty
        )
        first: dict[tuple[bool, bytes], tuple[tuple[int, ...], float]] = {}
        later = []
        for ids, score in ranked:
            text = model.tokenizer.text_bytes([i for i in ids if i >= 0])
            found = first.setdefault((ids[-1:] == (-1,), text), (ids, score))
            later += [(ids, score)] if found[0] != ids and ids[-1:] != (-1,) else []
        kept = dict(sorted([*first.values(), *later][:beams], key=ranked.index))
    return kept


@cache
def _texts(longest: int) -> list[str]:
    """Every text of the letters of the patterns, up to a length that is small."""
    if longest > 4:
        return ["red", "re", "ed", "d", "rede", "ree", "ede", "de"] + [
            word + gap + more for word in ("yes", "no") for gap in ("", " ") for more in ("the", "an", "")
        ]
    return ["".join(letters) for n in range(longest + 1) for letters in product("abcxred", repeat=n)]


def _found(state: SequenceState, prompt: list[int]) -> list[tuple[tuple[int, ...], float]]:
    return [(row.token_ids[len(prompt) :], row.weight) for row in state.rows[0]]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(_PATTERNS),
    st.sampled_from([1, 2, 3, 5, 400]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.text("abn ", min_size=1, max_size=4),
)
def test_beams_are_those_of_the_textbook_and_many_beams_are_exhaustive(
    pattern: str, beams: int, penalty: float, prompt: str
) -> None:
    model = random_model()
    write = generate.regex(model, pattern, sampler=samplers.beam_search(beams, length_penalty=penalty), force=False)
    ids = model.tokenizer.encode(prompt, add_special_tokens=True)
    token_fsm = fsm.TokenFSM(fsm.regex(pattern), model.memo["vocabulary"])
    wanted = _textbook(model, token_fsm, ids, beams, {(): 0.0}, penalty)
    state = continuous(write)(prompt)
    got = _found(state, ids)
    assert [(*found, -1) for found, _ in got] == list(wanted)
    assert [weight for _, weight in got] == pytest.approx(list(wanted.values()), abs=1e-8)
    assert all(re.fullmatch(pattern, value) for value in state.values[0])
    assert len(set(state.values[0])) == len(state.values[0])
    if beams == 400:
        # More than there are spellings, so every text is found.
        longest = max(map(len, state.values[0]))
        assert set(state.values[0]) == {text for text in _texts(longest) if re.fullmatch(pattern, text)}


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from(_PATTERNS), st.sampled_from(_PATTERNS))
def test_a_beam_goes_on_in_the_next_piece_as_one_sequence(beams: int, first: str, second: str) -> None:
    model = random_model()
    search = samplers.beam_search(beams)
    prompt = model.tokenizer.encode("the", add_special_tokens=True)
    state = continuous(generate.regex(model, first, sampler=search, force=False))("the")
    after = continuous(generate.regex(model, second, sampler=search, force=False))(state)
    token_fsm = fsm.TokenFSM(fsm.regex(second), model.memo["vocabulary"])
    pool: Found = {}
    # The joint search, entry by entry of the first piece: its prompt is another one for each.
    starts = _found(state, prompt)
    kept = [(begun, (), score) for begun, score in starts]
    while any(ids[-1:] != (-1,) for _, ids, _ in kept):
        options = [item for item in kept if item[1][-1:] == (-1,)]
        for begun, ids, score in kept:
            if ids[-1:] != (-1,):
                found = _continuations(model, token_fsm, [*prompt, *begun], ids)
                options += [(begun, more, score + p) for more, p in found.items()]
        # What reads alike is one hypothesis, wherever its first piece ended.
        best: dict[tuple[bool, bytes], tuple[Any, ...]] = {}
        others: dict[tuple[int, ...], tuple[Any, ...]] = {}
        for item in sorted(options, key=lambda item: -item[2]):
            spelled, has_ended = (*item[0], *(i for i in item[1] if i != -1)), item[1][-1:] == (-1,)
            first_found = best.setdefault((has_ended, model.tokenizer.text_bytes(spelled)), item)
            if not has_ended and (*first_found[0], *first_found[1]) != spelled:
                others.setdefault(spelled, item)
        kept = sorted([*best.values(), *others.values()][:beams], key=lambda item: -item[2])
    pool = {(*begun, *ids[:-1]): score for begun, ids, score in kept}
    got = _found(after, prompt)
    assert [ids for ids, _ in got] == [(*begun, *ids[:-1]) for begun, ids, _ in kept]
    assert [weight for _, weight in got] == pytest.approx([score for *_, score in kept], abs=1e-8)
    assert len(pool) <= len(got)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_beams_of_forced_text_and_batches_conform_and_are_scored_whole(family: str) -> None:
    model = random_model(family)
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["red", "green", "blue"]}, "age": {"enum": [1, 12, 20]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    write = generate.json(model, schema, sampler=samplers.beam_search(4))
    prompts = ["the name ", "a", "yes no true"]
    state = continuous(write)(prompts)
    assert state.batch_size == 3
    for group, weights in zip(state.rows, state.weights.tolist(), strict=True):
        assert weights == sorted(weights, reverse=True)
        for row in group:
            if isinstance(row.error, NoHypothesis):
                continue
            assert row.value["age"] in (1, 12, 20)
            logprobs = next_logits(model, row.token_ids).log_softmax(-1)
            start = row.piece.start if row.piece else 0
            total = sum(float(logprobs[i - 1, row.token_ids[i]]) for i in range(start, len(row.token_ids)))
            assert row.weight - ends_of(row) == pytest.approx(total, abs=1e-6)
    alone = [continuous(write)(prompt) for prompt in prompts]
    found = [[value for value in group if value is not None] for group in state.values]
    assert [one.values[0] for one in alone] == found
    assert write(prompts[0]) == found[0]


def test_the_prompt_is_fed_once_and_a_hypothesis_costs_one_token() -> None:
    model = random_model()
    with model.meter() as meter:
        state = continuous(generate.regex(model, "[a-z]{6}", sampler=samplers.beam_search(5), force=False))(
            "the name of"
        )
    longest = max(len(row.token_ids) for row in state.rows[0]) - state.rows[0][0].piece.start  # type: ignore[union-attr]
    prompt = state.rows[0][0].piece.start  # type: ignore[union-attr]
    assert meter.fed_tokens <= prompt + 5 * longest
    assert meter.recomputed_tokens == 0


def test_free_text_ends_where_it_may_and_is_cut_where_it_must() -> None:
    model = random_model()
    search = continuous(generate.text(model, sampler=samplers.beam_search(3)))
    state = search("the name", max_tokens=4)
    assert state.shape[1] == 3
    assert len(set(state)) == 3
    resumed = search.resume(state, max_tokens=2) if "length" in state.finish_reasons[0] else state
    assert resumed.shape[1] == 3
    stopped = search("the name", max_tokens=6, stop_at="e")
    assert all("e" not in value for value in stopped.values[0])


def test_entries_with_fewer_hypotheses_than_others_say_so() -> None:
    model = random_model()
    search = samplers.beam_search(6)
    full = continuous(generate.text(model, sampler=search))("a", max_tokens=1)
    narrow = continuous(generate.choice(model, ["yes"], sampler=search, force=False))("the")
    both = continuous(generate.text(model, sampler=samplers.greedy()))
    uneven = SequenceState(model, (full.rows[0], (narrow.rows[0][0],) * full.num_samples), 0)
    one = SequenceState(model, ((uneven.rows[1][0],), (uneven.rows[1][0],)), 0)
    assert both(one, max_tokens=1).shape[1] == 1
    write = generate.choice(model, ["x", "yes"], sampler=search, force=False)
    state = continuous(write)([full[0, :1, :], narrow[0, :1, :]])
    assert state.shape[1] == max(sum(error is None for error in group) for group in state.errors)
    missing = [error for group in state.errors for error in group if error is not None]
    assert all(isinstance(error, NoHypothesis) for error in missing)
    values = write([full[0, :1, :], narrow[0, :1, :]])
    assert [[error is not None for error in group] for group in state.errors] == [
        [value is None for value in group] for group in values
    ]


def test_the_best_of_several_is_the_one_with_the_largest_weight() -> None:
    model = random_model()
    many = continuous(generate.text(model, sampler=samplers.multinomial(5, temperature=2.0)))
    best = continuous(generate.text(model, sampler=samplers.best_of(5, temperature=2.0)))
    state = many("the name", max_tokens=4, rng=3)
    one = best("the name", max_tokens=4, rng=3)
    assert one.shape[:2] == (1, 1)
    assert one == state.best()
    with model.meter() as meter:
        after = best(one, max_tokens=2)
    assert after.shape[:2] == (1, 1)
    assert meter.fed_tokens <= 5 * 2
    assert after == many(one.fork(5), max_tokens=2).best()
    assert generate.choice(model, ["yes", "no"], sampler=samplers.best_of(3))("a", rng=1) in ("yes", "no")
    assert best(one.fork(2), max_tokens=1).shape[1] == 2
