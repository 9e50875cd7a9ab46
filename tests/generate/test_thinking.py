"""Thinking before an answer: the answer is that of a constrained piece after the same thoughts, and no token is fed twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, Thinking, Tokens, continuous, generate, policies, samplers
from outlines_cont.errors import IncompleteOutput, OptionError, ResumeError
from tests.examples import examples
from tests.fakes import END_OF_TURN, FakeTokenizer, random_model, saying, scripted_model

BRACKETS = Thinking(begin="[T]\n", end="\n[/T]\n")
SHAPES = {
    "choice": lambda model, **options: generate.choice(model, ["yes", "no", "red"], **options),
    "regex": lambda model, **options: generate.regex(model, "[a-z]{3,9}", **options),
    "json": lambda model, **options: generate.json(model, {"type": "integer", "minimum": 0}, **options),
    "text": lambda model, **options: generate.text(model, **options),
}


def by_hand(generator: Any, prompt: Any, thinking: Thinking, **options: Any) -> SequenceState:
    """What `thinking` does, as a chain: free text up to the mark, what is missing of the mark, the answer; one row."""
    model, rng = generator.model, options.pop("rng", None)
    begin, end = thinking.begin or "", thinking.end or ""
    name = end.strip().startswith("<end>")
    free = continuous(generate.text(model, sampler=thinking.sampler or generator.sampler))
    state = _appended(model, prompt, begin, rng)
    stops: dict[str, Any] = {"stop_token_ids": [END_OF_TURN]} if name else {"stop_at": end.strip(), "keep_stop": True}
    state = free(state, max_tokens=thinking.max_tokens, **stops)
    text = end.strip() if not name else None
    rest = end[end.index(text) + len(text) :] if text is not None and state.stops[0][0] == text else end
    return continuous(generator)(state + Tokens.of(rest, special=True) if rest else state, **options)


def _appended(model: Any, prompt: str, begin: str, rng: int | None) -> SequenceState:
    """A state of the prompt and the mark of which nothing was fed."""
    empty = continuous(generate.fsm(model, ""))(prompt, rng=rng)
    return empty + begin if begin else empty


def copied(thinking: Thinking) -> Thinking:
    return Thinking(begin=thinking.begin, end=thinking.end)


def ids_of(state: SequenceState) -> list[tuple[int, ...]]:
    return [row.token_ids for group in state.rows for row in group]


@settings(max_examples=examples(12))
@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(["", "[T]", "<t>\n", "(th"]),
    st.sampled_from(["e", " th ", "an\n", "\nit", "<end>", "<end>\nso: ", "zqzq"]),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_answer_is_that_after_the_same_thoughts(
    shape: str, begin: str, end: str, limit: int, is_drawn: bool, own: bool, seed: int
) -> None:
    model = random_model()
    sampler = samplers.multinomial(temperature=0.8) if is_drawn else samplers.greedy()
    thinking = Thinking(begin=begin, end=end, max_tokens=limit, sampler=samplers.multinomial() if own else None)
    generator = SHAPES[shape](model, sampler=sampler)
    expected = by_hand(generator, "Say: ", thinking, max_tokens=12, rng=seed)
    with model.meter() as meter:
        state = continuous(generator)("Say: ", max_tokens=12, rng=seed, thinking=thinking)
    assert ids_of(state) == ids_of(expected)
    assert state.values == expected.values
    assert state.finish_reasons == expected.finish_reasons
    assert meter.recomputed_tokens == 0
    answer = state.rows[0][0].piece
    assert answer is not None
    assert answer.thoughts is not None
    # The thoughts are what stands between the marks.
    before, after = f"Say: {begin}", str(state)
    assert after[len(before) :].startswith(state.thoughts)
    rest = after[len(before) + len(state.thoughts) :]
    closed = [end, end[len(end) - len(end.lstrip()) :]] if state.thought_reasons == [["stop"]] else [end]
    shown = model.tokenizer.text_bytes(state.rows[0][0].token_ids[answer.start :]).decode(errors="replace")
    assert rest in [mark + shown for mark in closed]


def test_no_token_is_fed_twice_and_the_mark_that_the_model_writes_is_not_written_again() -> None:
    model = scripted_model(saying("[T]\nHm, yes[/T]\nyes"))
    generator = generate.choice(model, ["yes", "no"], thinking=BRACKETS)
    with model.meter() as meter:
        state = continuous(generator)("go>", max_tokens=9)
    assert str(state) == "go>[T]\nHm, yes[/T]\nyes"
    assert (state.thoughts, state.value) == ("Hm, yes", "yes")
    assert meter.fed_tokens <= state.shape[2]
    assert meter.recomputed_tokens == 0
    assert generator("go>", max_tokens=9) == "yes"


def test_thoughts_are_closed_at_their_limit_and_where_the_model_ends_its_text() -> None:
    model = scripted_model(saying("[T]\nHm, hm, hm"))
    generator = generate.choice(model, ["yes", "no"], thinking=BRACKETS)
    ended = continuous(generator)("go>", max_tokens=9)
    assert (ended.thoughts, ended.thought_reasons) == ("Hm, hm, hm", [["stop"]])
    assert str(ended) in ("go>[T]\nHm, hm, hm\n[/T]\nyes", "go>[T]\nHm, hm, hm\n[/T]\nno")
    short = Thinking(begin="[T]\n", end="\n[/T]\n", max_tokens=2)
    cut = continuous(generator)("go>", max_tokens=9, thinking=short)
    assert (cut.thoughts, cut.thought_reasons) == ("Hm", [["length"]])
    assert str(cut).startswith("go>[T]\nHm\n[/T]\n")


def test_options_are_those_of_the_answer_alone() -> None:
    model = scripted_model(saying("[T]\nred. red[/T]\nred."))
    generator = generate.text(model, thinking=BRACKETS)
    state = continuous(generator)("go>", stop_at=".", max_tokens=50)
    assert (state.thoughts, state.value, state.stops) == ("red. red", "red", [["."]])
    banned = continuous(generator)("go>", policies=[policies.ban(["red"])], max_tokens=4)
    assert banned.thoughts == "red. red"
    assert "red" not in banned.value


def test_samples_and_the_best_of_them_think_for_themselves() -> None:
    model = random_model()
    thinking = Thinking(begin="[T]", end="e", max_tokens=20)
    drawn = continuous(generate.regex(model, "[a-z]{2,6}", sampler=samplers.multinomial(4), thinking=thinking))
    state = drawn("Be: ", rng=3, max_tokens=9)
    assert len(set(state.thoughts[0])) > 1
    best = continuous(generate.regex(model, "[a-z]{2,6}", sampler=samplers.best_of(4), thinking=thinking))
    chosen = best("Be: ", rng=3, max_tokens=9)
    assert ids_of(chosen) == ids_of(state.best())
    assert chosen.thoughts in state.thoughts[0]


def test_thoughts_that_were_cut_are_resumed_by_what_thinks_alone() -> None:
    model = random_model()
    thinks, plain = (continuous(generate.regex(model, "[a-z]{6,9}", thinking=given)) for given in (Thinking(begin="[T]", end="zqzq"), None))
    with thinks.stream("Be: ") as stream:
        next(iter(stream))
    assert stream.state.rows[0][0].piece.is_thinking
    with pytest.raises(ResumeError, match="thinking"):
        plain.resume(stream.state)
    assert thinks.resume(stream.state).values == thinks("Be: ").values


def test_partial_values_begin_with_the_answer() -> None:
    model = scripted_model(saying('[T]\n{"a"[/T]\n[1,2]'))
    generator = generate.json(model, list[int], thinking=BRACKETS)
    assert list(generator.stream("go>", partial=True, max_tokens=9))[-1] == [1, 2]


def test_a_prompt_that_ends_inside_of_thoughts_gets_no_second_mark() -> None:
    model = scripted_model(saying("[T]\nHm, yes[/T]\nyes"))
    generator = generate.choice(model, ["yes", "no"], thinking=BRACKETS)
    whole = continuous(generator)("go>", max_tokens=9)
    assert str(continuous(generator)("go>[T]\n", max_tokens=9)) == str(whole)
    for length in range(len("go>[T]"), len("go>[T]\nHm, yes")):
        state = continuous(generator)(whole[:length], max_tokens=9)
        assert str(state) == str(whole)
        assert state.thoughts.strip() == "Hm, yes"[max(length - len("go>[T]\n"), 0) :].strip()
    # A chain thinks again.
    again = continuous(generator)(whole + "\n>", max_tokens=9)
    assert str(again).startswith(str(whole) + "\n>[T]\n")


def test_letters_of_a_mark_in_a_prompt_do_not_begin_thoughts_where_the_mark_is_a_token() -> None:
    model = scripted_model(saying("yes"))
    thinking = Thinking(begin="<end>", end="yes", max_tokens=3)
    for prompt, count in ((Tokens.of("say <end> >"), 1), (Tokens.of("say <end> >", special=True), 1)):
        state = continuous(generate.choice(model, ["yes", "no"], thinking=thinking))(prompt, max_tokens=4)
        assert [*ids_of(state)[0]].count(END_OF_TURN) == count
    assert FakeTokenizer().special_tokens[END_OF_TURN] == "<end>"


def test_a_context_that_is_full_cuts_the_thoughts() -> None:
    model = random_model()
    generator = generate.choice(model, ["yes", "no"], thinking=Thinking(begin="[T]", end="zqzq", max_tokens=None))
    state = continuous(generator)("Be: ", max_tokens=9)
    assert state.shape[2] == model.context_length or state.thought_reasons == [["stop"]]
    long = "a b " * 61
    cut = continuous(generator)(long, max_tokens=9)
    assert (cut.finish_reasons, cut.values) == ([["length"]], [[None]])
    with pytest.raises(IncompleteOutput, match="context"):
        generator(long, max_tokens=9)


def test_a_slice_has_the_tokens_of_its_text_and_no_thoughts() -> None:
    model = scripted_model(saying("[T]\nHm, yes[/T]\nyes"))
    state = continuous(generate.choice(model, ["yes", "no"], thinking=BRACKETS))("go>", max_tokens=9)
    cut = state[: len("go>[T]\nHm,")]
    assert cut.thoughts == ""
    assert int(cut.cached) == cut.shape[2]
    assert (state + "!").thoughts == ""
    assert state.fork(2).thoughts == [["Hm, yes"] * 2]


def test_a_generator_that_thinks_is_pickled() -> None:
    generator = generate.choice(random_model(), ["yes", "no"], thinking=BRACKETS)
    name, args, options = generator.made_by or ("", (), {})
    assert (name, options["thinking"]) == ("choice", BRACKETS)
    assert generator.thinking == BRACKETS
    assert args
    assert hash(BRACKETS) == hash(copied(BRACKETS))


@pytest.mark.parametrize(
    ("made", "called", "told"),
    [
        ({"sampler": samplers.beam_search(2)}, {}, "sampler"),
        ({"thinking": "yes"}, {}, "thinking"),
        ({"thinking": True}, {}, "marks"),
        ({}, {"heal": True}, "heal"),
        ({}, {"thinking": 3}, "thinking"),
    ],
)
def test_what_does_not_go_together_is_refused(made: dict[str, Any], called: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        generate.choice(random_model(), ["yes", "no"], **{"thinking": BRACKETS, **made})("go", max_tokens=3, **called)


@pytest.mark.parametrize(
    "fields", [{"begin": "[T]"}, {"end": "x"}, {"begin": "", "end": " "}, {"max_tokens": 0}, {"sampler": samplers.best_of(2)}]
)
def test_fields_that_say_nothing_useful_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Thinking(**fields)
