"""Beam search where hypotheses coincide, fail, are cut, or are fewer or more than the beams."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.engine.beam import BeamJob
from outlines_cont.engine.engine import Engine
from outlines_cont.errors import DeadEnd, IncompleteOutput, InvalidLogits, NoHypothesis
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.samplers import BeamSearch
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import END_OF_TURN, EOS, FakeTokenizer, random_model, random_network, scripted_model
from tests.oracle import ends_of, next_logits, rescored
from tests.rows import row_of

_PROMPTS = st.text("abn ", min_size=1, max_size=5)


@settings(max_examples=10)
@given(_PROMPTS, st.sampled_from(["(a|b|ab|bc){1,2}", "[a-z]{3,5}", "(yes|no) ?(the|an)?"]), st.booleans())
def test_one_beam_is_greedy(prompt: str, pattern: str, force: bool) -> None:
    model = random_model()
    one = samplers.beam_search(1)
    for beam, greedy in (
        (generate.text(model, sampler=one), generate.text(model)),
        (generate.regex(model, pattern, sampler=one, force=force), generate.regex(model, pattern, force=force)),
    ):
        wanted = continuous(greedy)(prompt, max_tokens=6)
        found = continuous(beam)(prompt, max_tokens=6)
        assert wanted.rows[0][0].token_ids == found.rows[0][0].token_ids
        assert wanted.rows[0][0].weight == pytest.approx(found.rows[0][0].weight, abs=1e-9)
        assert (wanted.finish_reasons, wanted.values) == (found.finish_reasons, found.values)


@settings(max_examples=8)
@given(_PROMPTS, st.integers(2, 4), st.integers(2, 3))
def test_equal_rows_are_one_hypothesis(prompt: str, beams: int, copies: int) -> None:
    model = random_model()
    write = continuous(generate.regex(model, "[a-z]{2,3}", sampler=samplers.beam_search(beams), force=False))
    start = continuous(generate.text(model))(prompt, max_tokens=1)
    wanted, found = write(start).rows[0], write(start.fork(copies)).rows[0]
    assert [row.token_ids for row in wanted] == [row.token_ids for row in found]
    assert [row.weight for row in wanted] == pytest.approx([row.weight for row in found], abs=1e-9)
    assert len({row.token_ids for row in found}) == len(found) == beams


@settings(max_examples=8)
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
    state = continuous(generate.regex(model, "a{0,2}", sampler=samplers.beam_search(50), force=False))("the")
    assert sorted(state.values[0]) == ["", "a", "aa"]
    for row in state.rows[0]:
        logprobs = next_logits(model, row.token_ids)[-1].log_softmax(-1)
        assert ends_of(row) in (0.0, pytest.approx(max(float(logprobs[i]) for i in model.eos_token_ids), abs=1e-9))


@settings(max_examples=6)
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
    engine = Engine(model)
    engine.submit(job)
    while not job.is_over:
        engine.advance(job)
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
    model = scripted_model(lambda ids: {a: -math.inf})
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
