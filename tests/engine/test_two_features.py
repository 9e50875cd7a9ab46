"""Two features at once: each does beside the other what it does alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from fsm.terms.node import checked, literal, sequence
from outlines_cont import BatchedExecutor, continuous, engine_of, generate, samplers
from outlines_cont.engine.engine import Engine
from outlines_cont.errors import IncompleteOutput
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.policy import RowView
from outlines_cont.samplers import greedy
from outlines_cont.state.row import StateRow
from tests.engine.test_engine import TEXTS, job_of, run
from tests.engine.test_engine_loop import Planned, _ids
from tests.fakes import EOS, FakeTokenizer, random_model, saying, scripted_model
from tests.oracle import greedy_ids, next_logits
from tests.rows import row_of
from tests.sampling_oracle import plain_law

# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_beams_that_go_on_are_the_same_however_few_rows_may_run(monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    model, search = random_model(), samplers.beam_search(4)
    first = continuous(generate.regex(model, "[a-d]{3}", sampler=search, force=False))
    second = continuous(generate.regex(model, "[abn]{4}", sampler=search, force=False))
    prompts = ["the name", "a", "red or blue"]
    wanted = second(first(prompts))
    monkeypatch.setattr(engine_of(model), "max_rows", max_rows)
    assert [list(wanted), wanted.weights.tolist()] == [list(found := second(first(prompts))), found.weights.tolist()]


def test_a_greedy_row_draws_no_number_beside_rows_that_do() -> None:
    model = random_model()
    engine = Engine(model)
    chosen = [greedy(), samplers.multinomial(temperature=2.0), greedy(frequency_penalty=1.0)]
    jobs = [job_of(model, text, sampler=sampler) for text, sampler in zip(TEXTS, chosen, strict=False)]
    for job in jobs:
        engine.submit(job)
    drawn = [row.stream.drawn for row in run(engine, *jobs)]
    assert drawn[0] == drawn[2] == 0
    assert drawn[1] > 0


@pytest.mark.parametrize(
    "sampler", [greedy(repetition_penalty=1.6), greedy(frequency_penalty=2.0, presence_penalty=1.0)], ids=str
)
def test_forks_are_penalised_by_what_each_of_them_holds(sampler: samplers.Greedy) -> None:
    model, prompt = random_model(), _ids("the name the")
    first = [model.tokenizer.encode(letter)[0] for letter in "xyz"]

    def plan(state: int, row: RowView) -> list[Branch]:
        if state == 3 and row.token_ids[-1] not in first:
            return [Branch(sample_mask=TokenSet.of([token_id])) for token_id in first]
        return [Branch(sample_mask=TokenSet.all)]

    rows = _all_rows(prompt, plan, sampler)
    assert sorted(row.token_ids[len(prompt) + 3] for row in rows) == sorted(first)
    for row in rows:
        written = list(row.token_ids[len(prompt) :])
        for at in range(4, len(written)):
            before = prompt + written[:at]
            logits = next_logits(model, before)[-1].double().tolist()
            assert written[at] == int(plain_law(logits, sampler.params, before, written[:at]).argmax())


def _all_rows(prompt: list[int], plan: Callable[[int, RowView], list[Branch]], sampler: Any) -> list[StateRow]:
    """What became of a row and of all its forks."""
    from outlines_cont.engine.job import Job
    from outlines_cont.meter import Meter
    from outlines_cont.sampling.random_stream import RandomStream

    counts = Meter()
    source = StateRow.of_prompt(prompt, RandomStream(7))
    row = row_of(source, [Planned(plan)], random_model(), counts=counts, max_tokens=9, sampler=sampler)
    job = Job([row], counts)
    engine = Engine(random_model())
    engine.submit(job)
    while not job.is_over:
        engine.advance(job)
    return [job.done[index] for index in sorted(job.done)]


def test_the_end_of_a_text_is_no_token_of_its_length() -> None:
    """With a length penalty of 1 the text that goes on is better: -1.72 / 2 beats -1.67 / 1."""
    tokenizer = FakeTokenizer()
    (x,) = tokenizer.encode("x")
    seldom = dict.fromkeys(range(len(tokenizer.token_bytes)), -1e4)

    def script(ids: list[int]) -> dict[int, float]:
        written = tokenizer.decode(ids).partition(">")[2]
        return {"": {x: 5.4}, "x": seldom | {EOS: 0.0, x: -0.05}, "xx": seldom | {EOS: 0.0}}.get(written, {})

    write = generate.text(scripted_model(script), sampler=samplers.beam_search(1, length_penalty=1.0))
    assert write("q>", max_tokens=3) == "xx"


# -- checks, stops, forced text ----------------------------------------------------------------------------------------


class Unlike:
    """A text is none of those that are bad; what was asked is kept."""

    telling_bytes = frozenset[int]()

    def __init__(self, bad: set[bytes]) -> None:
        self.bad, self.asked = bad, list[bytes]()

    def holds(self, data: bytes) -> bool:
        self.asked.append(data)
        return data not in self.bad

    def fault(self, data: bytes) -> int | None:
        return None

    def __str__(self) -> str:
        return "the text is good"


@pytest.mark.parametrize("bad", [set(), {b"aaa"}, {b"aaa", b"aab", b"aac"}, {b"aaa", b"aab", b"aba", b"abb"}])
def test_how_often_one_value_failed_says_nothing_of_the_next(bad: set[bytes]) -> None:
    """What is tried for the second value does not depend on what was tried for the first."""
    ids = {letter: FakeTokenizer().encode(letter)[0] for letter in "abc"}
    model = scripted_model(lambda _: {ids["a"]: 3.0, ids["b"]: 2.0, ids["c"]: 1.0})
    text = fsm.regex("[abc]{3}").node

    def tried(first: set[bytes]) -> tuple[str, list[bytes]]:
        checks = Unlike(first), Unlike({b"aaa", b"aab"})
        parts = [literal(b"<"), checked(text, checks[0]), literal(b","), checked(text, checks[1]), literal(b">")]
        value = generate.fsm(model, fsm.Expression(sequence(parts)))("q>", max_tokens=60)
        return value, checks[1].asked

    value, asked = tried(bad)
    assert value[1:4].encode() not in bad
    assert value[5:8].encode() not in {b"aaa", b"aab"}
    assert tried(set())[1] == asked


UNIQUE = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "maxItems": 3, "uniqueItems": True}


@settings(max_examples=12, deadline=None)
@given(st.text("abn the", min_size=1, max_size=6), st.sampled_from(["zzz", "}", "]x"]))
def test_a_value_that_is_written_anew_is_not_cut_by_a_stop_text_that_never_comes(prompt: str, stop: str) -> None:
    write = continuous(generate.json(random_model(), UNIQUE))
    alone, beside = write(prompt, max_tokens=90), write(prompt, max_tokens=90, stop_at=stop)
    assert list(alone) == list(beside)
    assert alone.finish_reasons == beside.finish_reasons == [["constraint"]]
    assert sorted(beside.value) == [1, 2, 3]
    assert torch.equal(alone.retries, beside.retries)


@settings(max_examples=12, deadline=None)
@given(st.text("abn the", min_size=1, max_size=6), st.integers(1, 6), st.booleans())
def test_a_stop_text_at_the_border_of_a_token_costs_none_before_it(prompt: str, at: int, keep: bool) -> None:
    """What stands before it keeps its log-probabilities, its weight and its cache."""
    model = random_model()
    whole = continuous(generate.text(model))(prompt, max_tokens=8)
    start = len(model.tokenizer.encode(prompt, add_special_tokens=True))
    ids = whole.token_ids[0, 0].tolist()
    spell = model.tokenizer.text_bytes
    try:
        stop = spell(ids[start + at : start + at + 2]).decode()
        before = spell(ids[start : start + at]).decode()
    except UnicodeDecodeError:
        return
    if not stop or stop in before + stop[:-1]:
        return
    cut = continuous(generate.text(model))(prompt, max_tokens=8, stop_at=stop)
    if len(str(cut)) - len(prompt) != len(before):
        return  # it was found inside what stands before, too
    assert ids[: start + at] == cut.token_ids[0, 0].tolist()
    assert whole.logprobs[0, 0, : start + at].tolist() == pytest.approx(cut.logprobs[0, 0].tolist(), abs=1e-6)
    assert float(cut.weights) == pytest.approx(float(whole.logprobs[0, 0, start : start + at].sum()), abs=1e-5)
    assert int(cut.cached) == start + at


def test_text_that_is_forced_depends_on_what_stands_before_it_and_on_nothing_else() -> None:
    model = random_model()
    write = generate.choice(model, ["theory"])
    prompts = ["a ", "a", "(", "the", "é"]
    together = [list(row.token_ids) for prompt in prompts for row in continuous(write)(prompt).rows[0]]
    for prompt, ids in zip(prompts, together, strict=True):
        before = model.tokenizer.encode(prompt, add_special_tokens=True)
        assert before + model.tokenizer.encode_inside("theory", before) == ids
    alone = [
        continuous(generate.choice(model, ["theory"]))(prompt).rows[0][0].token_ids for prompt in reversed(prompts)
    ]
    assert together == [list(ids) for ids in reversed(alone)]
    spelled = {tuple(model.tokenizer.encode_inside("theory", model.tokenizer.encode(prompt))) for prompt in prompts}
    assert len(spelled) == 2  # a word that goes on is spelled otherwise than one that begins


class Odd:
    """A number is odd."""

    telling_bytes = frozenset[int]()

    def holds(self, data: bytes) -> bool:
        return int(data) % 2 == 1

    def fault(self, data: bytes) -> int | None:
        return None

    def __str__(self) -> str:
        return "the number is odd"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 49999), st.text("0123456789", min_size=1, max_size=2), st.booleans())
def test_what_stands_before_a_stop_text_is_a_value_where_it_conforms(half: int, stop: str, is_checked: bool) -> None:
    """With checks, which the automaton does not hold, as without them."""
    number, language = str(2 * half + 1), fsm.regex("[0-9]{1,5}")
    model = scripted_model(saying(number))
    kept = number.partition(stop)[0]
    write = generate.fsm(model, fsm.Expression(checked(language.node, Odd())) if is_checked else language)
    conforms = bool(kept) and (not is_checked or int(kept) % 2 == 1)
    state = continuous(write)("q>", stop_at=stop)
    assert f"q>{kept}" == str(state)
    assert (kept if conforms else None) == state.value
    if conforms:
        assert write("q>", stop_at=stop) == kept
    else:
        with pytest.raises(IncompleteOutput, match="a stop text") as caught:
            write("q>", stop_at=stop)
        assert (kept, "stop") == (caught.value.text, caught.value.reason)


# -- conversations -----------------------------------------------------------------------------------------------------


def test_an_end_of_text_lifts_a_constraint_only_where_the_text_is_whole() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("the name")
        conversation.constrain(fsm.regex("[0-9]{2}"))
        conversation.prompt("1")
        with pytest.raises(fsm.TokenNotAllowed):
            conversation.prompt([EOS])
        conversation.prompt("2")
        conversation.prompt([EOS])
        conversation.prompt("free again")
        assert conversation.text.endswith("12free again")


@pytest.mark.parametrize("count", [1, 3])
def test_after_a_rewind_one_token_is_read_once_more_for_its_logits(count: int) -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("the name of the rose")
        assert executor.infer() == len(conversation)
        conversation.rewind(count)
        with random_model().meter() as meter:
            assert executor.infer() == 1
        assert meter.fed_tokens == 1
        assert torch.allclose(next_logits(random_model(), conversation.token_ids)[-1], conversation.logits(), atol=1e-6)
        assert greedy_ids(random_model(), conversation.token_ids, 1) == [conversation.sample()]
