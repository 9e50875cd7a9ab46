"""Streams of events: what they tell, joined, is what a plain call writes, and their state at any moment is one that was cut there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from outlines_cont import SequenceState, StreamEvent, continuous, engine_of, generate, samplers
from outlines_cont.errors import CheckFailed, IncompleteOutput, OptionError
from outlines_cont.state.row import StateRow
from tests.examples import examples
from tests.fakes import random_model
from tests.oracle import next_logits

_ITEM = {"enum": [1, 2, 12]}
# An automaton does not count items by place and value, so that this is checked.
UNIQUE = {"type": "array", "prefixItems": [_ITEM], "items": _ITEM, "minItems": 2, "maxItems": 3, "uniqueItems": True}
PROMPTS = ["the name", "a", "red or blue"]


def makers(model: Any, sampler: Any) -> dict[str, Any]:
    """Generators of each kind: free, forced, and one that goes back."""
    return {
        "text": generate.text(model, sampler=sampler),
        "regex": generate.regex(model, "(the |a ){1,2}(name|rose)[ab]{0,4}", sampler=sampler),
        "checked": generate.json(model, UNIQUE, sampler=sampler),
    }


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


def told(events: Iterable[StreamEvent]) -> dict[tuple[int, int], dict[str, Any]]:
    """Replay events: the text, tokens and log-probabilities of each row, and how often something was taken back."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        row = rows.setdefault((event.batch, event.sample), {"text": "", "ids": [], "logprobs": [], "top": [], "reason": "", "back": 0})
        assert not row["reason"], "an event after the last one"
        row["text"] = row["text"][: len(row["text"]) - event.retract] + event.text
        for name, new in (("ids", event.token_ids), ("logprobs", event.logprobs), ("top", event.top)):
            assert len(new) == len(event.token_ids)
            del row[name][len(row[name]) - event.retract_tokens :]
            row[name] += new
        row["reason"], row["back"] = event.finish_reason, row["back"] + event.retract + event.retract_tokens
    return rows


def written(state: SequenceState) -> dict[tuple[int, int], dict[str, Any]]:
    """What a state says of the last piece of each row."""
    found = {}
    for b, group in enumerate(state.rows):
        for s, row in enumerate(group):
            assert row.piece is not None
            ids = row.token_ids[row.piece.start :]
            text = state.tokenizer.text_bytes(ids).decode(errors="replace")
            logprobs = state.logprobs[b, s, state.shape[2] - len(ids) :].tolist()  # rows are padded on the left
            found[b, s] = {
                "text": text,
                "ids": [*ids],
                "logprobs": pytest.approx(logprobs, abs=1e-6, nan_ok=True),
                "reason": row.finish_reason,
            }
    return found


CALLS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["text", "regex", "checked"]),
        "stop_at": st.sampled_from([None, "e", ["na", "th", " r"], ["aaa", "ab", "b"]]),
        "max_tokens": st.integers(1, 14),
        "rng": st.integers(0, 50),
    }
)


@settings(max_examples=examples(11))
@given(CALLS, st.booleans(), st.sampled_from([1, 2]))
def test_all_that_a_stream_tells_is_what_a_call_writes(model: Any, call: dict[str, Any], retract: bool, samples: int) -> None:
    options = {name: value for name, value in call.items() if name != "kind"}
    generator = makers(model, samplers.multinomial(samples, temperature=2.0))[call["kind"]]
    whole = continuous(generator)(PROMPTS, **options)
    stream = continuous(generator).stream(PROMPTS, retract=retract, **options)
    rows = told(stream)
    assert {place: {name: row[name] for name in ("text", "ids", "logprobs", "reason")} for place, row in rows.items()} == written(whole)
    assert retract or not any(row["back"] for row in rows.values())
    assert stream.state == whole
    assert [list(group) for group in stream.state.values] == [list(group) for group in whole.values]


@settings(max_examples=examples(11))
@given(CALLS, st.integers(0, 12), st.integers(0, 12))
def test_the_state_of_any_moment_goes_on_as_if_nothing_had_happened(model: Any, call: dict[str, Any], looked: int, left: int) -> None:
    options = {name: value for name, value in call.items() if name not in ("kind", "rng")}
    generator = makers(model, samplers.multinomial(2, temperature=2.0))[call["kind"]]
    with model.meter() as meter:
        whole = continuous(generator)(PROMPTS, rng=call["rng"], **options)
    with model.meter() as spent:
        stream, seen = continuous(generator).stream(PROMPTS, rng=call["rng"], **options), None
        for number, _ in enumerate(stream):
            if number == looked:
                seen = stream.state
            if number == left:
                break
        state = stream.state
        resumed = _resumed(continuous(generator), state, options)
    _same(resumed, whole)
    assert spent.fed_tokens - spent.recomputed_tokens <= meter.fed_tokens - meter.recomputed_tokens + len(resumed)
    if seen is not None:  # what came after it has not changed it
        _same(_resumed(continuous(generator), seen, options), whole)


def _resumed(continuation: Any, state: SequenceState, options: dict[str, Any]) -> list[StateRow | None]:
    """Go on with each row by itself, for as many tokens as it has left; None for one that has none left but has not ended."""
    rows: list[StateRow | None] = []
    for place in [(b, s) for b in range(state.batch_size) for s in range(state.num_samples)]:
        alone = state.take([place])
        row = alone.rows[0][0]
        assert row.piece is not None
        left = options["max_tokens"] - (len(row.token_ids) - row.piece.start)
        if left > 0:
            alone = continuation.resume(alone, **(options | {"max_tokens": left}))
        rows.append(alone.rows[0][0] if left > 0 or row.finish_reason != "length" else None)
    return rows


def _same(rows: list[StateRow | None], whole: SequenceState) -> None:
    for row, wanted in zip(rows, [row for group in whole.rows for row in group], strict=True):
        if row is not None:
            assert row.token_ids == wanted.token_ids
            assert row.weight == pytest.approx(wanted.weight)


def test_all_tokens_are_the_alternatives_where_more_are_wanted_than_there_are(model: Any) -> None:
    assert model.vocab_size < 1000
    events = list(continuous(generate.text(model)).stream("the name", top=1000, max_tokens=1))
    (top,) = [top for event in events for top in event.top]
    assert {*range(model.vocab_size)} == {token_id for token_id, _ in top}


def test_the_alternatives_are_the_most_probable_of_a_fresh_run(model: Any) -> None:
    rows = told(continuous(generate.text(model, sampler=samplers.multinomial(2))).stream(PROMPTS, top=3, max_tokens=5, rng=1))
    assert 2 * len(PROMPTS) == len(rows)
    for (batch, _), row in rows.items():
        ids = model.tokenizer.encode(PROMPTS[batch], add_special_tokens=True)
        assert row["ids"]
        for token_id, logprob, top in zip(row["ids"], row["logprobs"], row["top"], strict=True):
            wanted = next_logits(model, ids)[-1].log_softmax(-1)
            values, places = wanted.topk(3)
            assert [place for place, _ in top] == places.tolist()
            assert [value for _, value in top] == pytest.approx(values.tolist())
            assert logprob == pytest.approx(float(wanted[token_id]))
            ids = [*ids, token_id]


def test_a_consumer_that_raises_leaves_everything_usable(model: Any) -> None:
    generator = continuous(generate.text(model, sampler=samplers.multinomial(2)))
    whole = generator("the name", max_tokens=8, rng=3)
    stream = generator.stream("the name", max_tokens=8, rng=3)
    with pytest.raises(ZeroDivisionError):
        for _ in stream:
            1 / 0
    assert engine_of(model).num_running == 0
    assert generator.resume(stream.state, max_tokens=7).rows[0][0].token_ids == whole.rows[0][0].token_ids
    assert list(stream) == []
    assert generator("the name", max_tokens=8, rng=3) == whole


def test_tasks_stream_side_by_side_and_one_that_is_left_keeps_its_state(model: Any) -> None:
    generator = continuous(generate.text(model))
    whole = [generator(prompt, max_tokens=6) for prompt in PROMPTS]

    async def read(index: int) -> tuple[list[StreamEvent], SequenceState]:
        events = []
        async with generator.astream(PROMPTS[index], max_tokens=6) as stream:
            async for event in stream:
                events.append(event)
                if index == 1 and len(events) == 3:
                    break
        return events, stream.state

    async def read_all() -> list[Any]:
        return await asyncio.gather(*(read(index) for index in range(3)))

    for index, (events, state) in enumerate(asyncio.run(read_all())):
        ids = whole[index].rows[0][0].token_ids
        if index == 1:
            assert state.finish_reasons == [["length"]]
            assert generator.resume(state, max_tokens=6 - (len(state.rows[0][0].token_ids) - state.rows[0][0].piece.start)) == whole[index]
        else:
            assert told(events)[0, 0]["ids"] == [*ids[len(ids) - 6 :]]
            assert state == whole[index]
    assert engine_of(model).num_running == 0


def test_a_row_that_fails_says_so_in_its_last_event_and_the_others_go_on(model: Any) -> None:
    impossible = UNIQUE | {"minItems": 3, "prefixItems": [{"enum": [1, 2]}], "items": {"anyOf": [{"const": 1}, {"const": 2}]}}
    generator = generate.json(model, impossible, max_retries=3)
    stream = continuous(generator).stream(PROMPTS[:2])
    ends = {event.batch: event for event in stream if event.finish_reason}
    assert {batch: event.finish_reason for batch, event in ends.items()} == {0: "error", 1: "error"}
    for batch, event in ends.items():
        assert isinstance(event.error, CheckFailed)
        assert event.error is stream.state.rows[batch][0].error


@pytest.mark.parametrize("options", [{"top": 2}, {"retract": True}, {"events": True, "top": -1}, {"events": True, "top": True}])
def test_what_a_text_cannot_tell_is_refused(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        generate.text(model).stream("a", **options)


class Named(BaseModel):
    """A record with a field of each kind."""

    name: Annotated[str, Field(max_length=6)]
    rose: Literal["red", "blue"]
    numbers: Annotated[list[int], Field(max_length=2)] = []


@settings(max_examples=examples(5))
@given(st.sampled_from([Named, UNIQUE]), st.booleans(), st.sampled_from([1, 2]), st.integers(0, 50))
def test_values_so_far_lead_to_the_values_of_a_call(model: Any, kind: Any, retract: bool, samples: int, rng: int) -> None:
    generator = generate.json(model, kind, sampler=samplers.multinomial(samples, temperature=2.0))
    state = continuous(generator)(PROMPTS, rng=rng)
    values: dict[tuple[int, int], list[Any]] = {}
    for event in continuous(generator).stream(PROMPTS, partial=True, retract=retract, rng=rng):
        values.setdefault((event.batch, event.sample), []).append(event.value)
        assert not event.finish_reason or event.value == state.values[event.batch][event.sample]
    assert {place: found[-1] for place, found in values.items()} == {
        (b, s): value for b, group in enumerate(state.values) for s, value in enumerate(group)
    }


def test_a_stream_of_values_yields_each_that_differs_in_the_shape_of_the_values(model: Any) -> None:
    generator = generate.json(model, Named)
    records = list(generator.stream("a", partial=True))
    assert generator("a") == records[-1]
    assert set() == records[0].model_fields_set
    assert all(earlier != later for earlier, later in itertools.pairwise(records))
    grids = list(generator.stream(PROMPTS, partial=True))
    assert generator(PROMPTS) == grids[-1]
    assert [3] * len(grids) == [*map(len, grids)]

    async def last() -> Any:
        return [record async for record in generator.astream("a", partial=True)][-1]

    assert records[-1] == asyncio.run(last())


def test_a_record_that_is_cut_ends_with_what_is_there_and_the_error_of_a_call(model: Any) -> None:
    seen = []
    with pytest.raises(IncompleteOutput):
        for record in generate.json(model, Named).stream("a", partial=True, max_tokens=6):
            seen.append(record)
    assert isinstance(seen[-1], Named)
    assert "numbers" not in seen[-1].model_fields_set


def test_a_stop_text_ends_both_kinds_of_streams_of_a_constrained_text_without_an_error(model: Any) -> None:
    for pattern in ("[a-z]{12}", "[a-z]{5} [0-9]{7}"):
        generator = generate.regex(model, pattern)
        whole = generator("a")
        for stop in (whole[3], whole[5:7], whole[-1], "\u2028"):
            wanted = whole.partition(stop)[0]
            texts = ["".join(event.text for event in continuous(generator).stream("a", stop_at=stop))]
            texts += ["".join(generator.stream("a", stop_at=stop))]
            texts += ["".join(event.text for event in generator.stream("a", events=True, stop_at=stop))]
            assert texts == [wanted] * 3
            if wanted != whole:
                with pytest.raises(IncompleteOutput):  # a call has no value
                    generator("a", stop_at=stop)


def test_arguments_of_a_function_are_shown_as_a_dict(model: Any) -> None:
    def call(rose: Literal["red", "blue"], number: Literal[1, 2]) -> None:
        """A function."""

    shown = list(generate.json(model, call).stream("a", partial=True))
    assert [[*values] for values in shown] == [[], ["rose"], ["rose", "number"]]


@pytest.mark.parametrize("make", [lambda model: generate.text(model), lambda model: generate.regex(model, "a")])
def test_what_is_no_json_has_no_values_so_far(model: Any, make: Any) -> None:
    for stream in (make(model).stream, continuous(make(model)).stream, make(model).astream):
        with pytest.raises(OptionError, match="expected a generator of JSON for `partial=True`"):
            stream("a", partial=True)
