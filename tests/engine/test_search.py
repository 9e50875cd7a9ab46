"""Beam search and best-of against exhaustive search and a textbook beam search, also where hypotheses coincide, fail or are cut."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import Branch, Engine, Policy, RowView, SequenceState, TokenSet, continuous, generate, models, samplers
from outlines_cont.engine.beam import BeamJob
from outlines_cont.errors import DeadEnd, IncompleteOutput, InvalidLogits, NoHypothesis
from outlines_cont.models import HuggingFaceModel, Meter
from outlines_cont.samplers import BeamSearch
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.examples import examples
from tests.fakes import END_OF_TURN, EOS, FakeTokenizer, random_model, random_network, scripted_model
from tests.oracle import ends_of, next_logits, rescored
from tests.rows import finished, row_of

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


def _textbook(model: HuggingFaceModel, token_fsm: fsm.TokenFSM, prompt: list[int], beams: int, start: Found, penalty: float) -> Found:
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
        ranked = sorted(pool.items(), key=lambda item: -item[1] / max(len([i for i in item[0] if i >= 0]), 1) ** penalty)
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


@settings(max_examples=examples(10), deadline=None)
@given(
    st.sampled_from(_PATTERNS),
    st.sampled_from([1, 2, 3, 5, 400]),
    st.sampled_from([0.0, 1.0, 2.0]),
    st.text("abn ", min_size=1, max_size=4),
)
def test_beams_are_those_of_the_textbook_and_many_beams_are_exhaustive(pattern: str, beams: int, penalty: float, prompt: str) -> None:
    model = random_model()
    write = generate.regex(model, pattern, sampler=samplers.beam_search(beams, length_penalty=penalty), force=False, end="eos")
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


@settings(max_examples=examples(6), deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from(_PATTERNS), st.sampled_from(_PATTERNS))
def test_a_beam_goes_on_in_the_next_piece_as_one_sequence(beams: int, first: str, second: str) -> None:
    model = random_model()
    search = samplers.beam_search(beams)
    prompt = model.tokenizer.encode("the", add_special_tokens=True)
    state = continuous(generate.regex(model, first, sampler=search, force=False, end="eos"))("the")
    after = continuous(generate.regex(model, second, sampler=search, force=False, end="eos"))(state)
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
        state = continuous(generate.regex(model, "[a-z]{6}", sampler=samplers.beam_search(5), force=False))("the name of")
    longest = max(len(row.token_ids) for row in state.rows[0]) - state.rows[0][0].piece.start  # type: ignore[union-attr]
    prompt = state.rows[0][0].piece.start  # type: ignore[union-attr]
    assert meter.fed_tokens <= prompt + 5 * longest
    assert meter.recomputed_tokens == 0


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
    assert [[error is not None for error in group] for group in state.errors] == [[value is None for value in group] for group in values]


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


_PROMPTS = st.text("abn ", min_size=1, max_size=5)


@settings(max_examples=examples(8))
@given(_PROMPTS, st.integers(2, 4), st.integers(2, 3))
def test_equal_rows_are_one_hypothesis(prompt: str, beams: int, copies: int) -> None:
    model = random_model()
    write = continuous(generate.regex(model, "[a-z]{2,3}", sampler=samplers.beam_search(beams), force=False))
    start = continuous(generate.text(model))(prompt, max_tokens=1)
    wanted, found = write(start).rows[0], write(start.fork(copies)).rows[0]
    assert [row.token_ids for row in wanted] == [row.token_ids for row in found]
    assert [row.weight for row in wanted] == pytest.approx([row.weight for row in found], abs=1e-9)
    assert len({row.token_ids for row in found}) == len(found) == beams


@settings(max_examples=examples(8))
@given(_PROMPTS, st.sampled_from(["e", "a", " ", "th"]))
def test_a_stop_text_that_is_spelled_in_several_ways_makes_one_hypothesis(prompt: str, stop_at: str) -> None:
    model = random_model()
    state = continuous(generate.text(model, sampler=samplers.beam_search(6)))(prompt, max_tokens=4, stop_at=stop_at)
    assert all(stop_at not in value for value in state.values[0])
    assert len({row.token_ids for row in state.rows[0]}) == state.num_samples
    assert state.scores[0].tolist() == sorted(state.scores[0].tolist(), reverse=True)
    for row in state.rows[0]:
        scores = rescored(model, row.token_ids)
        start = max([0, *(stop for _, stop in row.counted.skipped)])
        kept = [score if kind in b"gf" else 0.0 for score, kind in zip(scores, row.kinds, strict=True)][start:]
        assert sum(kept) == pytest.approx(row.weight - ends_of(row), abs=1e-9)


def test_several_ends_of_text_make_one_hypothesis_with_the_likelier_end() -> None:
    network = random_network("llama")
    network.generation_config.eos_token_id = [EOS, END_OF_TURN]
    model = models.from_transformers(network, FakeTokenizer())
    assert {EOS, END_OF_TURN} <= model.eos_token_ids
    state = continuous(generate.regex(model, "a{0,2}", sampler=samplers.beam_search(50), force=False, end="eos"))("the")
    assert sorted(state.values[0]) == ["", "a", "aa"]
    for row in state.rows[0]:
        logprobs = next_logits(model, row.token_ids)[-1].log_softmax(-1)
        assert ends_of(row) in (0.0, pytest.approx(max(float(logprobs[i]) for i in model.eos_token_ids), abs=1e-9))


@settings(max_examples=examples(8), deadline=None)
@given(st.sampled_from(_PATTERNS), st.integers(1, 5), st.integers(1, 5), st.lists(_PROMPTS, min_size=1, max_size=3))
def test_a_search_that_keeps_some_keeps_the_best_of_all(pattern: str, beams: int, keep: int, prompts: list[str]) -> None:
    model, keep = random_model(), min(beams, keep)
    every, some = (generate.regex(model, pattern, sampler=samplers.beam_search(beams, keep=kept), force=False) for kept in (None, keep))
    full, best = continuous(every)(prompts), continuous(some)(prompts)
    assert [[(row.token_ids, row.weight) for row in rows[:keep]] for rows in full.rows] == [
        [(row.token_ids, row.weight) for row in rows] for rows in best.rows
    ]
    one = continuous(some)(prompts[0])
    assert some(prompts[0]) == (one.value if one.num_samples == 1 else one.values[0])
    assert continuous(some)(full, max_tokens=4).num_samples <= keep


@settings(max_examples=examples(6))
@given(_PROMPTS, st.integers(1, 4), st.integers(0, 3))
def test_rows_of_a_beam_draw_different_numbers_afterwards(prompt: str, beams: int, seed: int) -> None:
    model = random_model()
    state = continuous(generate.regex(model, "[a-z]{3}", sampler=samplers.beam_search(beams)))(prompt, rng=seed)
    streams = [row.stream for row in state.rows[0]]
    assert len(set(streams)) == beams == len(streams)
    assert streams[0] == RandomStream(seed)
    again = continuous(generate.regex(model, "[a-z]{3}", sampler=samplers.beam_search(beams)))(state)
    assert streams == [row.stream for row in again.rows[0]]


def test_more_rows_than_beams_are_cut_down_also_where_nothing_is_chosen() -> None:
    model = random_model()
    start = continuous(generate.text(model, sampler=samplers.multinomial(4)))("the", max_tokens=2, rng=0)
    state = continuous(generate.choice(model, ["yes"], sampler=samplers.beam_search(2)))(start)
    plain = continuous(generate.choice(model, ["yes"]))(start)
    assert state.num_samples == 2
    assert state.weights[0].tolist() == pytest.approx(plain.best(2).weights[0].tolist(), abs=1e-9)


def test_a_hypothesis_that_the_parser_refuses_makes_place_for_others() -> None:
    def picky(text: str) -> str:
        if text.startswith("a"):
            raise ValueError("never a")
        return text

    model = random_model()
    plain = generate.regex(model, "[ab]{2}", sampler=samplers.beam_search(16), force=False)
    every = continuous(plain)("the")
    wanted = [value for value in every.values[0] if not value.startswith("a")]
    state = continuous(dataclasses.replace(plain, parse=picky))("the")
    assert wanted == state.values[0]
    nothing = continuous(dataclasses.replace(generate.choice(model, ["a"], sampler=plain.sampler), parse=picky))("the")
    assert nothing.shape[:2] == (1, 1)
    assert isinstance(nothing.errors[0][0], ValueError)


def test_a_hypothesis_that_fails_is_dropped_unless_it_is_the_only_one() -> None:
    tokenizer = FakeTokenizer()
    q, z = (tokenizer.encode(letter)[0] for letter in "qz")

    def script(ids: list[int]) -> dict[int, float]:
        return {q: math.nan} if ids[-1] == q else {q: 3.0, z: 2.0}

    model = scripted_model(script)
    write = generate.regex(model, "[qz]{2}", sampler=samplers.beam_search(3), force=False)
    assert write("x") == ["zq", "zz"]
    alone = continuous(write)(["q", "z"])
    assert all(isinstance(error, InvalidLogits) for error in alone.errors[0])
    assert alone.errors[1] == [None, None]
    with pytest.raises(InvalidLogits, match="^batch 0, sample 0: "):
        write(["q", "z"])


def test_a_constrained_text_that_was_cut_ranks_behind_those_that_conform() -> None:
    tokenizer = FakeTokenizer()
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    model = scripted_model(lambda ids: {a: 9.0, b: 3.0})
    write = generate.regex(model, "a{5}|b", sampler=samplers.beam_search(2), force=False)
    state = continuous(write)("x", max_tokens=2)
    assert state.values == [["b", None]]
    assert state.finish_reasons == [["constraint", "length"]]
    assert state.weights[0, 0] < state.weights[0, 1]
    with pytest.raises(IncompleteOutput, match="^batch 0, sample 1: .*`max_tokens` cut it"):
        write("x", max_tokens=2)
    resumed = continuous(write).resume(state)
    assert resumed.values == [["aaaaa", "b"]]
    best = generate.regex(model, "a{5}|b", sampler=samplers.best_of(2000), force=False)
    assert best("x", max_tokens=2, rng=0) == "b"


def test_entries_that_fail_before_anything_runs_do_not_hurt_the_others() -> None:
    model = random_model()
    write = generate.choice(model, ["yes", "no", "the"], sampler=samplers.beam_search(3), force=False)
    state = continuous(write)(["a", "x" * 400])
    assert state.batch_size == 2
    assert write("a") == state.values[0]
    assert not any(isinstance(error, NoHypothesis) for error in state.errors[1])
    assert all(state.errors[1])


class _Retry(Policy[tuple[int, int]]):
    """Write three tokens of a set; take the second back once and write it again without what stood there."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids

    @property
    def horizon(self) -> int:
        return 1

    def initial(self, row: RowView) -> tuple[int, int]:
        return 0, -1

    def advance(self, state: tuple[int, int], token_id: int) -> tuple[int, int]:
        return state[0] + 1, state[1]

    def branches(self, state: tuple[int, int], row: RowView) -> list[Branch]:
        length, banned = state
        if length == 3:
            return []
        allowed = TokenSet.of(i for i in self.token_ids if i != banned or length != 1)
        if length == 2 and banned < 0:
            return [Branch(backtrack=1)]
        return [Branch(sample_mask=allowed)]

    def rewound(self, before: tuple[int, int], after: tuple[int, int], row: RowView) -> tuple[int, int]:
        return after[0], self.token_ids[0]


class _Ends:
    def finish(self, row: StateRow) -> StateRow:
        return row

    def is_whole(self, row: StateRow) -> bool:
        return True


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_policy_that_gives_tokens_back_leaves_hypotheses_that_are_scored_right(family: str) -> None:
    model = random_model(family)
    letters = model.tokenizer.encode("abn")
    source = StateRow.of_prompt(model.tokenizer.encode("the name"), RandomStream(0)).searched()
    counts = Meter()
    rows = [[row_of(source, [_Retry(letters)], model, counts=counts)]]
    ends, tokens = model.eos_token_ids, model.tokenizer.token_bytes
    job = BeamJob(rows, [[]], BeamSearch(beams=30), ends, counts, _Ends(), tokens)
    finished(job, Engine(model))
    prompt = len(source.token_ids)
    wanted: dict[tuple[int, ...], float] = {}
    for first in letters:
        for second in letters[1:]:
            for third in letters:
                ids = (*source.token_ids, first, second, third)
                wanted[ids] = sum(rescored(model, ids)[prompt:])
    found: list[Any] = job.ended[0]
    assert [row.token_ids for row in found] == sorted(wanted, key=lambda ids: -wanted[ids])
    assert [row.weight for row in found] == pytest.approx(sorted(wanted.values(), reverse=True), abs=1e-9)
    assert all(row.error is None for row in found)


def test_a_dead_end_of_every_hypothesis_is_its_error() -> None:
    a = FakeTokenizer().encode("a")[0]
    a, x = (FakeTokenizer().encode(text)[0] for text in "ax")
    model = scripted_model(lambda ids: {a: -math.inf} if list(ids)[-1:] == [x] else {})
    state = continuous(generate.regex(model, "a{2}", sampler=samplers.beam_search(2), force=False))("x")
    assert state.shape[:2] == (1, 1)
    assert isinstance(state.errors[0][0], DeadEnd)


def test_a_spelling_that_is_behind_at_first_may_turn_out_the_best() -> None:
    tokenizer = FakeTokenizer()
    i, ng, inside, g, x, t = (tokenizer.encode(text)[0] for text in ("i", "ng", "in", "g", "x", "t"))
    likely = {(): {inside: 0.5, i: 0.4}, (i,): {ng: 0.9}, (i, ng): {x: 0.9}, (inside,): {g: 0.9}}
    likely[inside, g] = {x: 0.01, t: 0.99}

    def logits(token_ids: np.ndarray) -> np.ndarray:
        row = np.full(len(tokenizer), -12.0, np.float32)
        for token_id, probability in likely.get(tuple(token_ids[2:].tolist()), {}).items():
            row[token_id] = np.log(probability)
        return row

    model = models.from_callable(logits, tokenizer)
    state = continuous(generate.regex(model, "ingx", sampler=samplers.beam_search(4), force=False))("a")
    assert [row.token_ids[2:] for row in state.rows[0]] == [(i, ng, x)]
