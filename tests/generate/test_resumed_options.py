"""A piece that is resumed is the same piece: the options of its call are kept in the state and its file, given ones replace them."""

from __future__ import annotations

import io
import json
import re
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import Chat, Guidance, SequenceState, Thinking, Tokens, continuous, generate, models, policies, samplers
from outlines_cont.errors import BanImpossible, OptionError, ResumeError, StateFileError
from outlines_cont.generation.options import Options
from outlines_cont.policies import Branch, Policy, RowView, TokenSet
from outlines_cont.policies.saved import policy_of, record_of
from outlines_cont.state.kept_options import KeptOptions
from outlines_cont.state.row import HEALED, StateRow
from tests.chat_models import chat_model
from tests.examples import examples
from tests.fakes import END_OF_TURN, random_model

PROMPTS, SEEDS = ["the name of", "a"], [3, 4]
QUESTION = "Message: Hi, Oskar Bella here. We need 3 office chairs in Porto Bella before 2030-01-02.\nRecord: "
BANS = [policies.ban([*"aeiou"], max_retries=None), policies.ban({"th": 0.5, re.compile("[b-d]"): 0})]


class Without(Policy[None]):
    """Lets no token of a set be drawn."""

    def __init__(self, *token_ids: int) -> None:
        self.mask = ~TokenSet.of(token_ids)

    def initial(self, row: RowView) -> None:
        return

    def advance(self, state: None, token_id: int) -> None:
        return

    def branches(self, state: None, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=self.mask)]


class Guess:
    """A draft that is no text."""

    def propose(self, token_ids: Any) -> list[int]:
        return [*token_ids[-2:]]


def loaded(state: SequenceState, model: Any = None) -> SequenceState:
    """A state as its file has it."""
    file = io.BytesIO()
    state.save(file)
    return SequenceState.load(io.BytesIO(file.getvalue()), model or state.model)


def row_of(state: SequenceState) -> StateRow:
    return state.rows[0][0]


def test_the_options_of_the_call_that_was_cut_are_those_of_the_rest() -> None:
    write = continuous(generate.text(models.tiny()))
    options: dict[str, Any] = {"policies": [policies.ban("Porto")], "stop_at": '"item', "keep_stop": True}
    whole = write(QUESTION, max_tokens=30, **options)
    assert whole.stops == [['"item']]
    cut = write(QUESTION, max_tokens=6, **options)
    for state in (
        cut,
        loaded(cut),
        loaded(loaded(cut)),
        cut.fork(2)[:, 1:, :],
        SequenceState.stack([cut]).take([(0, 0)]),
        cut.detach_cache(),
    ):
        assert write.resume(state, max_tokens=24) == whole
        stream = write.stream(state, resume=True, max_tokens=24)
        assert "".join(event.text for event in stream) == whole.value
        assert stream.state == whole
    assert "Porto" not in whole.value
    assert "Porto" in write.resume(cut, max_tokens=24, policies=[]).value
    assert write.resume(cut, max_tokens=24, policies=[], stop_at=None) == write(QUESTION, max_tokens=30)
    assert write.resume(cut, max_tokens=24, stop_at=['"item', "quantity"]) == whole  # it keeps the flag
    assert str(write.resume(cut, max_tokens=24, keep_stop=False)) == str(whole).removesuffix('"item')


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "policies": st.sampled_from([[BANS[0]], [BANS[1]], BANS, [policies.replace({"e": "ab", "n": "o"}, at_most=2)]]),
        "stop_at": st.sampled_from(["e", ["th", " r"], ["日", "aaa", "ab"]]),
        "stop_token_ids": st.just([END_OF_TURN, 70]),
        "min_tokens": st.integers(0, 4),
        "heal": st.booleans(),
        "guidance": st.sampled_from([Guidance("red is green", 2.5), [None, Guidance([70, 71], -0.5)], Guidance(Tokens.of("a"), 1.5)]),
        "draft": st.sampled_from(["lookup", None]),
        "thinking": st.sampled_from([Thinking(begin="[T]", end="e", max_tokens=4), False]),
    },
)
FLAGS = st.lists(st.sampled_from(["keep_stop", "stop_in_prompt"]), unique=True)
KINDS = {
    "text": lambda model, sampler: generate.text(model, sampler=sampler),
    "regex": lambda model, sampler: generate.regex(model, "(the |a ){1,2}(name|rose)[a-z]{0,9}", sampler=sampler),
    "list": lambda model, sampler: generate.json(
        model, {"type": "array", "items": {"enum": [1, 2, 12]}, "minItems": 2, "maxItems": 3, "uniqueItems": True}, sampler=sampler
    ),
}
PARTS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["call", "stream", "file"])), max_size=4)
MOST = 12


def counted(row: StateRow) -> int:
    """The tokens that `max_tokens` counts."""
    if row.piece is None or row.piece.is_thinking:
        return 0
    return len(row.token_ids) - row.piece.start - row.kinds.count(HEALED, row.piece.start)


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from([*KINDS]),
    OPTIONS,
    FLAGS,
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["call", "stream", "file"])), max_size=4),
)
def test_a_piece_of_any_options_that_is_cut_anywhere_is_the_whole(
    kind: str, options: dict[str, Any], flags: list[str], parts: list[tuple[int, str]]
) -> None:
    if options.get("thinking"):
        options = {name: value for name, value in options.items() if name not in ("heal", "guidance")}
    if "stop_at" in options:
        options |= dict.fromkeys(flags, True)
    if "policies" in options and options["policies"][0] not in BANS:
        options.pop("min_tokens", None)
        parts = parts or [(MOST, "call")]
    write = continuous(KINDS[kind](random_model(), samplers.multinomial(temperature=1.7)))
    whole = write(PROMPTS, rng=SEEDS, max_tokens=MOST, **options)
    with write.stream(PROMPTS, rng=SEEDS, max_tokens=MOST, **options) as stream:
        for _ in zip(range(parts[0][0] if parts else 1), stream, strict=False):
            pass
    is_exact = not any("at_most" in repr(policy) for policy in options.get("policies", ()))
    for batch in range(len(PROMPTS)):
        state, wanted = stream.state.take([(batch, 0)]), whole.take([(batch, 0)])
        for size, how in [*parts[1:], (MOST, "call")]:
            left = min(MOST - counted(row_of(state)), size)
            if left <= 0 or row_of(state).finish_reason != "length":
                break
            if how == "stream":
                with write.stream(state, resume=True, retract=True, max_tokens=left) as rest:
                    deque(rest, maxlen=0)
                state = rest.state
            else:
                state = write.resume(loaded(state) if how == "file" else state, max_tokens=left)
        if row_of(wanted).error or row_of(state).error:  # what was tried before is no part of a row that fails
            assert type(row_of(state).error) is type(row_of(wanted).error)
        elif is_exact and (counted(row_of(state)) < MOST or row_of(state).finish_reason != "length" or state == wanted):
            row, other = row_of(state), row_of(wanted)
            assert (row.token_ids, row.kinds, row.finish_reason) == (other.token_ids, other.kinds, other.finish_reason)
            assert (state.values, state.stops, state.thoughts) == (wanted.values, wanted.stops, wanted.thoughts)
            assert torch.allclose(state.weights, wanted.weights, atol=1e-6)
            assert torch.allclose(state.end_logprobs, wanted.end_logprobs, atol=1e-6)


def test_rows_with_other_options_keep_their_own() -> None:
    model = random_model()
    write = continuous(generate.text(model))
    given: list[dict[str, Any]] = [{"stop_at": "e"}, {"policies": [BANS[0]]}, {}, {"guidance": Guidance("red", 2)}]
    cuts = [write(PROMPTS[0], max_tokens=2, **one) for one in given]
    both = write.resume(SequenceState.stack(cuts), max_tokens=9)
    again = write.resume(loaded(SequenceState.stack(cuts)), max_tokens=9)
    for number, cut in enumerate(cuts):
        assert both.take([(number, 0)]) == again.take([(number, 0)]) == write.resume(cut, max_tokens=9)
    entries = [Guidance("red", 2), None]
    guided = write(PROMPTS, max_tokens=9, guidance=entries)
    part = write(PROMPTS, max_tokens=2, guidance=entries)
    assert write.resume(loaded(part), max_tokens=7) == guided
    assert write.resume(part.take([(1, 0), (0, 0)]), max_tokens=7) == guided.take([(1, 0), (0, 0)])
    with pytest.raises(OptionError, match="for each of 2 batch entries"):
        write.resume(part, guidance=[None])


@pytest.mark.parametrize(
    ("option", "value", "shown", "without"),
    [
        ("policies", [policies.ban("x"), Without(70)], "Without", []),
        ("policies", [policies.ban(fsm.regex("ab"))], "Ban", []),
        ("draft", Guess(), "Guess", None),
    ],
)
def test_what_a_file_cannot_hold_is_asked_for_by_its_name(option: str, value: Any, shown: str, without: Any) -> None:
    write = continuous(generate.text(random_model()))
    whole = write(PROMPTS, max_tokens=8, stop_at="日", **{option: value})
    cut = write(PROMPTS, max_tokens=3, stop_at="日", **{option: value})
    assert write.resume(cut, max_tokens=5) == whole
    kept = loaded(cut)
    with pytest.raises(ResumeError, match=rf"expected `{option}` .*\({shown}\), got none.*`{option}={re.escape(repr(without))}`"):
        write.resume(loaded(kept), max_tokens=5)
    assert write.resume(kept, max_tokens=5, **{option: value}) == whole
    assert write.resume(kept, max_tokens=5, **{option: without}) == write.resume(cut, max_tokens=5, **{option: without})


def test_thoughts_with_a_sampler_of_their_own_are_asked_for_while_they_last() -> None:
    thinking = Thinking(begin="[T]", end="zzz", max_tokens=4, sampler=samplers.multinomial(temperature=3.0))
    write = continuous(generate.regex(random_model(), "[a-z]{9}"))
    with write.stream(PROMPTS[0], rng=3, thinking=thinking) as stream:
        for _ in stream:
            break
    kept = loaded(stream.state)
    with pytest.raises(ResumeError, match="`thinking` .*Multinomial|`thinking` .*SamplingParams|expected `thinking`"):
        write.resume(kept)
    whole = write(PROMPTS[0], rng=3, thinking=thinking)
    assert write.resume(kept, thinking=thinking) == write.resume(stream.state) == whole
    answering = write(PROMPTS[0], rng=3, thinking=thinking, max_tokens=1)
    assert write.resume(loaded(answering)) == whole


def test_flags_of_stop_texts_and_least_tokens_are_checked_together_with_what_is_kept() -> None:
    write = continuous(generate.text(random_model()))
    cut = write("the", max_tokens=2, stop_at="日")
    assert write.resume(cut, max_tokens=3, keep_stop=True) == write("the", max_tokens=5)
    with pytest.raises(OptionError, match="together with `keep_stop`"):
        write.resume(write("the", max_tokens=2), keep_stop=True)
    with pytest.raises(OptionError, match="together with `keep_stop`"):
        write.resume(cut, keep_stop=True, stop_at=None)
    long = write("the", max_tokens=9, min_tokens=9)
    assert write.resume(write("the", max_tokens=4, min_tokens=4), max_tokens=5, min_tokens=9) == long
    part = write.resume(write("the", max_tokens=3, min_tokens=3), max_tokens=1, min_tokens=9)
    assert write.resume(part, max_tokens=5) == long


def test_the_retries_of_a_policy_count_over_the_parts() -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(temperature=1.5)))
    spent = 0
    for seed in range(examples(12)):
        ban = policies.ban([*"aeinorst"], max_retries=3)
        whole = write("the", rng=seed, max_tokens=16, policies=[ban])
        state = write("the", rng=seed, max_tokens=2, policies=[ban])
        for size in (2, 4, 8):
            if not row_of(state).error:
                state = write.resume(loaded(state), max_tokens=size)
        assert str(row_of(state).error or "") == str(row_of(whole).error or "") or row_of(whole).error is None
        assert (state, int(state.retries)) == (whole, int(whole.retries))
        spent += isinstance(row_of(whole).error, BanImpossible)
    assert spent > 1


def test_policies_are_those_of_their_records() -> None:
    made = [
        policies.ban(["delve", "Ä"], ignore_case=False, whole_word=True, include_prompt=True, max_retries=None, alternatives=3),
        policies.ban({"a": 0.5, re.compile("b+", re.IGNORECASE): 0.0}, horizon=9, on_exhausted="allow", max_retries_per_place=None),
        policies.replace({"a": "b"}, at_most=2),
    ]
    for policy in made:
        record = record_of(policy)
        assert record is not None
        again = policy_of(type(record).model_validate_json(record.model_dump_json()))
        assert (record_of(again), repr(again), type(again)) == (record, repr(policy), type(policy))
    assert record_of(Without(1)) is None


def test_every_option_is_kept_but_the_limit_and_the_report() -> None:
    given: dict[str, Any] = {
        "max_tokens": 3, "min_tokens": 1, "stop_at": ["a"], "keep_stop": True, "stop_in_prompt": True, "stop_token_ids": [1],
        "policies": [BANS[1]], "heal": True, "guidance": Guidance("a", 2), "on_progress": print, "draft": None, "thinking": False,
        "against": ["?"],
    }  # fmt: skip
    assert {*given} == {*Options.of({}).__dataclass_fields__} - {"given", "reply"}
    kept = Options.of(given).kept().kept_options()
    assert {*kept.model_dump(exclude_defaults=True)} == {*given, "lost"} - {"max_tokens", "on_progress", "heal", "against"}
    assert kept.lost.keys() == {"against"}, "it is in no file, and named where the piece is resumed"
    assert Options.of({}).kept().kept_options() == KeptOptions()


def test_a_piece_that_is_resumed_is_not_healed_again_whatever_is_given() -> None:
    model = random_model()
    write = continuous(generate.text(model))
    for heal in (False, True):
        state = write("the nam", max_tokens=2, rng=1, heal=heal)
        assert write.resume(state, max_tokens=3, heal=True) == write.resume(state, max_tokens=3)


def test_a_file_with_other_options_is_refused() -> None:
    write = continuous(generate.text(random_model()))
    cut = write("the", max_tokens=2, stop_at="日", policies=[BANS[1]])
    record: Any = record_of(BANS[1])
    odd = KeptOptions(policies=[record.model_copy(update={"patterns": [("(", 0, 0.0)]})])
    with pytest.raises(ResumeError, match="expected options of a piece that some call has taken"):
        write.resume(loaded(_with_options(cut, odd)))
    with pytest.raises(StateFileError, match="out of range"):
        loaded(_with_options(cut, KeptOptions(stop_token_ids=(10**6,))))
    assert json.loads(KeptOptions().model_dump_json(exclude_defaults=True)) == {}


def _with_options(state: SequenceState, options: KeptOptions) -> SequenceState:
    row = row_of(state)
    assert row.piece is not None
    return replace(state, rows=((replace(row, piece=replace(row.piece, options=options)),),))


def test_a_stream_that_resumes_tells_rows_that_had_ended_once() -> None:
    model = random_model()
    write = continuous(generate.regex(model, "[ab]{2}(c{9})?", sampler=samplers.multinomial(4, temperature=2.0)))
    state = write(PROMPTS, rng=2, max_tokens=4)
    assert {reason for group in state.finish_reasons for reason in group} >= {"length", "stop"}
    for retract in (False, True):
        rest = write.stream(state, resume=True, retract=retract)
        texts, ends = dict[tuple[int, int], str](), list[tuple[int, int, str]]()
        for event in rest:
            key = event.batch, event.sample
            before = texts.get(key, "")
            texts[key] = before[: len(before) - event.retract] + event.text
            ends += [(*key, event.finish_reason)] if event.finish_reason else []
        assert texts == {(b, s): value for b, group in enumerate(rest.state.values) for s, value in enumerate(group)}
        reasons = rest.state.finish_reasons
        assert sorted(ends) == [(b, s, reasons[b][s]) for b in range(2) for s in range(4)]
        assert rest.state == write.resume(state)
    ended = write.resume(state)
    assert [(event.text, event.finish_reason) for event in write.stream(ended, resume=True)] == [
        (value, reason) for values, reasons in zip(ended.values, ended.finish_reasons, strict=True)
        for value, reason in zip(values, reasons, strict=True)
    ]  # fmt: skip
    record = continuous(generate.json(model, {"enum": [[1, 2]]}))
    (event,) = record.stream(record("a"), resume=True, partial=True)
    assert (event.value, event.text, len(event.token_ids)) == ([1, 2], "[1,2]", len(event.logprobs))
    (event,) = record.stream(loaded(record("a")), resume=True, partial=True)
    assert event.value == [1, 2]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_reply_that_was_cut_keeps_its_options(is_loaded: bool) -> None:
    model = chat_model("Llama 3")
    chat = Chat(model).user("Hello?")
    free = generate.text(model)
    options: dict[str, Any] = {"policies": [policies.ban([*"aeiou"], max_retries=None)], "stop_at": "th"}
    whole, cut = chat.assistant(free, max_tokens=9, **options), chat.assistant(free, max_tokens=3, **options)
    if is_loaded:
        file = io.BytesIO()
        cut.save(file)
        cut = Chat.load(io.BytesIO(file.getvalue()), model)
    assert cut.resume(free, max_tokens=6) == whole
    assert cut.resume(free, max_tokens=6, policies=[], stop_at=None) != whole
