"""Probabilities of the values of a field: against plain forwards without a cache, enumeration of tokens, and draws of the engine."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import cache
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel

import fsm
from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import OptionError
from outlines_cont.generation.alternatives import scalar_texts
from outlines_cont.models import HuggingFaceModel
from tests.fakes import FakeTokenizer, random_model

PROMPT = "the name is>"
TOKENS = FakeTokenizer().token_bytes


class Record(BaseModel):
    kind: Literal["red", "green", "the rest", "or"]
    sure: bool
    level: Literal[1, 20, 300]
    note: Literal["é", "日", None]


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["red", "green", "the rest", "or"]},
        "address": {"type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"], "additionalProperties": False},
        "items": {"type": "array", "items": {"enum": [1, None, 'a"b']}, "minItems": 2, "maxItems": 2},
    },
    "required": ["kind", "address", "items"],
    "additionalProperties": False,
}


@cache
def _logs(token_ids: tuple[int, ...]) -> torch.Tensor:
    """The log-probabilities after ids, by a forward over all of them."""
    model = random_model()
    with torch.no_grad():
        return model.hugging_face(torch.tensor([token_ids]), use_cache=False).logits[0, -1].double().log_softmax(0)


def _written(schema: Any, seed: int = 1, **options: Any) -> SequenceState:
    write = generate.json(random_model(), schema, sampler=samplers.multinomial(), **options)
    return continuous(write)(PROMPT, rng=seed, max_tokens=200)


def _begin(state: SequenceState, value: bytes) -> tuple[tuple[int, ...], bytes]:
    """The ids before the token in which the text after `value` begins, and the bytes between."""
    row = state.rows[0][0]
    assert row.piece is not None
    ids, before = row.token_ids[: row.piece.start], b""
    for token_id in row.token_ids[row.piece.start :]:
        data = TOKENS[token_id] or b""
        if len(before + data) > len(value):
            break
        ids, before = (*ids, token_id), before + data
    return ids, value[len(before) :]


def _shares(state: SequenceState, text_before: str, values: list[Any], *, spellings: str) -> dict[Any, float]:
    """The model's own probabilities: products of conditional probabilities, and at the last token the sum of all that go on so."""
    begin, rest = _begin(state, text_before.encode())

    def every(ids: tuple[int, ...], text: bytes) -> float:
        logs, total = _logs(ids), 0.0
        for token_id, data in enumerate(TOKENS):
            if data and data.startswith(text):
                total += math.exp(float(logs[token_id]))
            elif data and text.startswith(data):
                total += math.exp(float(logs[token_id])) * every((*ids, token_id), text[len(data) :])
        return total

    def canonical(text: bytes) -> float:
        spelling, ids, log = random_model().tokenizer.encode_inside(text.decode(), begin), begin, 0.0
        for token_id in spelling[:-1]:
            log, ids = log + float(_logs(ids)[token_id]), (*ids, token_id)
        last = TOKENS[spelling[-1]] or b""
        return math.exp(log + float(_logs(ids)[[i for i, data in enumerate(TOKENS) if data and data.startswith(last)]].logsumexp(0)))

    texts = {value: rest + json.dumps(value, ensure_ascii=False).encode() for value in values}
    return {value: every(begin, text) if spellings == "all" else canonical(text) for value, text in texts.items()}


def _constrained(state: SequenceState, schema: Any, text_before: str, values: list[Any], **options: Any) -> dict[Any, float]:
    """The probabilities with which the values are drawn there without forced text: every sequence of allowed tokens, to the end of one."""
    language = generate.json(random_model(), schema, **options).constraint.token_fsm  # type: ignore[union-attr]
    begin, rest = _begin(state, text_before.encode())
    row = state.rows[0][0]
    assert row.piece is not None
    at = language.initial_state
    for token_id in begin[row.piece.start :]:
        at = language.next_state(at, token_id)
    texts = {value: rest + json.dumps(value, ensure_ascii=False).encode() for value in values}
    law: dict[Any, float] = dict.fromkeys(values, 0.0)

    def follow(ids: tuple[int, ...], fsm_state: int, text: bytes, chance: float) -> None:
        possible = [value for value, whole in texts.items() if whole.startswith(text) or text.startswith(whole)]
        if len(possible) < 2:
            law.update({value: law[value] + chance for value in possible})
            return
        allowed = language.allowed_token_ids(fsm_state).tolist()
        probs = _logs(ids)[allowed].softmax(0).tolist()
        for token_id, prob in zip(allowed, probs, strict=True):
            follow((*ids, token_id), language.next_state(fsm_state, token_id), text + (TOKENS[token_id] or b""), chance * prob)

    follow(begin, at, b"", 1.0)
    total = sum(law.values())
    return {value: chance / total for value, chance in law.items()}


PLACES: list[tuple[str, str, list[Any]]] = [
    ("kind", '"kind":', ["green", "or", "red", "the rest"]),
    ("address.paid", '"paid":', [False, True]),
    ("items[0]", '"items":[', ['a"b', 1, None]),
    ("items[1]", ",", ['a"b', 1, None]),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0])
@pytest.mark.parametrize("spellings", ["canonical", "all"])
def test_shares_are_sums_of_products_of_conditional_probabilities(place: tuple[str, str, list[Any]], spellings: str) -> None:
    path, mark, values = place
    state = _written(SCHEMA, whitespace="none")
    text = state.generated
    assert isinstance(text, str)
    at = (text.rindex(mark) if path == "items[1]" else text.index(mark)) + len(mark)
    found = state.alternatives(path, spellings=spellings)
    assert values == list(found.options)
    assert _shares(state, text[:at], values, spellings=spellings) == pytest.approx(found.shares, rel=1e-5, abs=0)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[0])
@pytest.mark.parametrize("whitespace", ["none", "spaced"])
def test_probabilities_are_those_of_every_sequence_of_tokens(place: tuple[str, str, list[Any]], whitespace: str) -> None:
    path, mark, values = place
    space = " " if whitespace == "spaced" else ""
    mark += "" if mark.endswith("[") else space
    mark = mark.replace(":[", f":{space}[")
    state = _written(SCHEMA, seed=2, whitespace=whitespace, force=False)
    text = state.generated
    assert isinstance(text, str)
    at = (text.rindex(mark) if path == "items[1]" else text.index(mark)) + len(mark)
    expected = _constrained(state, SCHEMA, text[:at], values, whitespace=whitespace, force=False)
    assert expected == pytest.approx(dict(state.alternatives(path)), rel=1e-6)


def test_they_are_the_shares_of_draws() -> None:
    num_draws, kinds = 700, {"kind": SCHEMA["properties"]["kind"]}  # type: ignore[index]
    schema = {"type": "object", "properties": kinds, "required": ["kind"], "additionalProperties": False}
    write = generate.json(random_model(), schema, sampler=samplers.multinomial(num_draws), whitespace="none")
    drawn = continuous(write)(PROMPT, rng=3, max_tokens=100)
    law = drawn.take([(0, 0)]).alternatives("kind")
    counts = Counter(record["kind"] for record in drawn.values[0])
    for kind, chance in law.items():
        assert num_draws * chance == pytest.approx(counts[kind], abs=4.5 * (num_draws * chance * (1 - chance)) ** 0.5 + 1)


def test_rows_have_values_of_their_own_and_nothing_is_fed_twice() -> None:
    model = random_model()
    write = continuous(generate.json(model, Record, sampler=samplers.multinomial(2)))
    state = write([PROMPT, "age 12>"], rng=[1, 2], max_tokens=100)
    grid = state.alternatives("sure")
    assert [len(group) for group in grid] == [2, 2]
    for batch in range(2):
        for sample in range(2):
            alone = state.take([(batch, sample)]).alternatives("sure")
            assert dict(alone) == pytest.approx(dict(grid[batch][sample]), rel=1e-9)
            assert alone.shares == pytest.approx(grid[batch][sample].shares, rel=1e-9)
    with model.meter() as meter:
        state.take([(0, 0)]).alternatives("note")
    assert meter.fed_tokens < 20


def test_the_tiny_model_is_sure_of_what_it_read() -> None:
    model = models.tiny(dtype="float64", prefix_cache_bytes=0)
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Porto", "Lisbon"]}, "paid": {"type": "boolean"}},
        "required": ["city", "paid"],
        "additionalProperties": False,
    }
    state = continuous(generate.json(model, schema, whitespace="none"))("Message: Please send 12 desk lamps to Porto.\nRecord: ")
    found = state.alternatives("city")
    assert found.best == "Porto"
    assert found["Porto"] > 0.9
    assert set(state.alternatives("paid")) == {True, False}


def _tiny_state() -> tuple[HuggingFaceModel, SequenceState]:
    model = random_model()
    fields = {"n": {"type": "integer", "minimum": 0, "maximum": 30}, "t": {"type": "string", "maxLength": 3}, "both": {"enum": [True, 1]}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return model, continuous(generate.json(model, schema))(PROMPT, max_tokens=60)


def test_what_has_no_such_probabilities_is_refused() -> None:
    model, state = _tiny_state()
    for path, said in (
        ("n", "none begins another, got 1 and 10"),
        ("t", "at most 1,000 values"),
        ("both", "equal in Python"),
        ("missing", "one of 'n', 't', 'both', got 'missing'"),
        (3, "the path of a value"),
    ):
        with pytest.raises(OptionError, match=said):
            state.alternatives(path)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="just written"):
        (state + " and").alternatives("n")
    with pytest.raises(OptionError, match="a JSON text"):
        continuous(generate.regex(model, "[a-c]{3}"))(PROMPT).alternatives("n")
    with pytest.raises(OptionError, match="whole JSON text"):
        continuous(generate.json(model, Record))(PROMPT, max_tokens=3).alternatives("kind")


def test_a_loaded_state_is_told_who_wrote_it(tmp_path: Any) -> None:
    write = generate.json(random_model(), Record)
    state = continuous(write)(PROMPT, max_tokens=100)
    state.save(tmp_path / "state.safetensors")
    loaded = SequenceState.load(tmp_path / "state.safetensors", random_model())
    with pytest.raises(OptionError, match="pass the `generator`"):
        loaded.alternatives("kind")
    with pytest.raises(OptionError, match="expected the generator that wrote the state as `generator`"):
        loaded.alternatives("kind", generator=generate.json(random_model(), {"type": "integer"}))
    assert dict(loaded.alternatives("kind", generator=write)) == pytest.approx(dict(state.alternatives("kind")), rel=1e-9)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"enum": ["a", "b\n", 'c"', 1, -2.5, True, None]}, ['"a"', '"b\\n"', '"c\\""', "-2.5", "1", "1.0", "null", "true"]),
        ({"type": "boolean"}, ["false", "true"]),
        ({"type": "integer", "minimum": 9, "maximum": 11}, ["10", "11", "9"]),
    ],
)
def test_the_values_are_those_of_the_schema(schema: Any, texts: list[str]) -> None:
    model = random_model()
    for language in (fsm.json_schema(schema), fsm.regex(r"x") + fsm.json_schema(schema) + fsm.regex("[,}]")):
        automaton = generate.fsm(model, language).constraint.token_fsm.automaton  # type: ignore[union-attr]
        state = automaton.initial_state if language.accepts(texts[0]) else automaton.next_state(automaton.initial_state, b"x")
        assert [text.encode() for text in sorted(texts)] == scalar_texts(automaton, state)


def test_a_text_that_is_one_scalar_is_a_choice() -> None:
    model = random_model()
    choose = continuous(generate.json(model, {"enum": ["red", "green"]}, force=False))
    state = choose(PROMPT)
    expected = generate.choice(model, ['"red"', '"green"'], exact=False, force=False).probabilities(PROMPT)
    found = state.alternatives("")
    assert {json.loads(text): chance for text, chance in expected.items()} == pytest.approx(dict(found), rel=1e-6)
