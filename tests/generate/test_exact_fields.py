"""Fields of JSON that are chosen as wholes: against a walk over all tokens, draws, and the same call in every other form."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, Template, Thinking, continuous, engine_of, generate, models, policies, samplers
from outlines_cont.errors import CalibrationWarning, OptionError
from outlines_cont.generation.choices.json_values import FieldFinder, place_of
from outlines_cont.models import HuggingFaceModel
from outlines_cont.pipelines import Extractor
from tests.examples import first
from tests.fakes import FakeTokenizer, failing, random_model, random_network, recurrent_network
from tests.oracle import plain_logs

PROMPT = "the name is>"
NESTED = ["yes", "yes, the red", "no", "not at all", "green"]
SPACES = ("", " ")


def _schema(*fields: Any) -> dict[str, Any]:
    names = [chr(ord("a") + i) for i in range(len(fields))]
    return {"type": "object", "properties": dict(zip(names, fields, strict=True)), "required": names, "additionalProperties": False}


def _tails(*values: list[str]) -> list[bytes]:
    """What may follow the first field of such an object, where the texts of the others are these."""
    names = [chr(ord("b") + i) for i in range(len(values))]
    spaces = [*itertools.product(SPACES, SPACES)]
    spelled = [[f',{i}"{name}":{j}{text}' for i, j in spaces for text in texts] for name, texts in zip(names, values, strict=True)]
    return [("".join(parts) + "}").encode() for parts in itertools.product(*spelled)]


def _walked(model: HuggingFaceModel, before: tuple[int, ...], texts: list[str], tails: list[bytes]) -> dict[tuple[int, ...], float]:
    """The law of what is written of the field that begins after ids, by its definition: every next token, one after the other."""
    logs, table, law = plain_logs(model), model.tokenizer.token_bytes, dict[tuple[int, ...], float]()
    for text in texts:
        spelled = model.tokenizer.encode_inside(text, before)
        inner, rest = tuple(spelled[:-1]), table[spelled[-1]] or b""
        total = sum(float(logs(before + inner[:i])[token_id]) for i, token_id in enumerate(inner))
        for token_id, data in enumerate(table):
            is_open = text[-1:].isdigit()
            if data and data.startswith(rest) and any(tail.startswith(data[len(rest) :]) for tail in tails):
                log = total + float(logs(before + inner)[token_id])
                if not is_open or len(data) > len(rest):
                    law[(*inner, token_id)] = log
            if data and is_open and any(tail.startswith(data) for tail in tails):
                after = before + inner + (spelled[-1],)
                last = float(logs(before + inner)[spelled[-1]]) + float(logs(after)[token_id])
                law[(*inner, spelled[-1], token_id)] = total + last
    norm = math.log(sum(map(math.exp, law.values())))
    return {path: math.exp(log - norm) for path, log in law.items()}


def _by_text(model: HuggingFaceModel, law: dict[tuple[int, ...], float], texts: list[str]) -> dict[str, float]:
    sums = dict.fromkeys(texts, 0.0)
    for path, chance in law.items():
        written = model.tokenizer.text_bytes(path).decode()
        owner = max((text for text in texts if written.startswith(text)), key=len)
        sums[owner] += chance
    return sums


def _field(model: HuggingFaceModel, row: Any, texts: list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of a row before its first field, and those of the path that was written."""
    ids, start = row.token_ids, row.piece.start
    sizes = [*itertools.accumulate(len(model.tokenizer.text_bytes([token_id])) for token_id in ids[start:])]
    text = model.tokenizer.text_bytes(ids[start:]).decode()
    head = re.match('[^:]*: ?"?', text)
    assert head is not None
    begin = head.end()
    end = begin + max((len(one) for one in texts if text[begin:].startswith(one)), default=0)
    is_open = texts[0][-1:].isdigit()
    first = sizes.index(begin) + 1
    last = next(i for i, size in enumerate(sizes) if size >= end + is_open)
    return ids[: start + first], ids[start + first : start + last + 1]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    options=st.lists(st.one_of(st.text("ab ", min_size=1, max_size=4), st.sampled_from(NESTED)), min_size=2, max_size=5, unique=True),
    prompt=st.sampled_from([PROMPT, "12 a", "red: ab"]),
)
def test_a_field_has_the_law_of_a_walk_over_all_tokens(options: list[str], prompt: str) -> None:
    model, texts = random_model(), [option + '"' for option in options]
    schema = _schema({"enum": options}, {"type": "boolean"})
    choose = continuous(generate.json(model, schema, exact_fields=True))
    state = choose(prompt)
    before, path = _field(model, state.rows[0][0], texts)
    law = _walked(model, before, texts, _tails(["true", "false"]))
    by_text = _by_text(model, law, texts)
    assert by_text[state.value["a"] + '"'] == pytest.approx(max(by_text.values()))
    at = len(before)
    drawn = state.sampling_logprobs[0, 0, at : at + len(path)].sum()
    assert math.log(law[path]) == pytest.approx(float(drawn), abs=1e-5)
    own = [float(plain_logs(model)(before + path[:i])[token_id]) for i, token_id in enumerate(path)]
    assert own == pytest.approx(state.logprobs[0, 0, at : at + len(path)].tolist(), abs=1e-4)


@pytest.mark.parametrize(("options", "temperature"), first(2, [(NESTED, 3.0), ([1, 10, 12, 2], 1.0), (NESTED, 1.0)]))
def test_draws_of_a_field_have_the_law_at_a_temperature(options: list[Any], temperature: float) -> None:
    model = random_model()
    is_text = isinstance(options[0], str)
    texts = [f'{option}"' if is_text else str(option) for option in options]
    field = {"enum": options} if is_text else {"type": "integer", "enum": options}
    tails = _tails(["true", "false"])
    sampler = samplers.multinomial(400, temperature=temperature)
    state = continuous(generate.json(model, _schema(field, {"type": "boolean"}), sampler=sampler, exact_fields=True))(PROMPT, rng=3)
    found, expected = Counter[str](), Counter[str]()
    laws: dict[tuple[int, ...], dict[str, float]] = {}
    for row in state.rows[0]:
        written = [*texts, *(f"{text}.0" for text in texts if not is_text)]
        before, _ = _field(model, row, written)
        if before not in laws:
            plain = _by_text(model, _walked(model, before, written, tails), written)
            power = {text: chance ** (1 / temperature) for text, chance in plain.items()}
            laws[before] = {text: one / sum(power.values()) for text, one in power.items()}
        for text, chance in laws[before].items():
            expected[text.removesuffix(".0")] += chance
        value = row.value["a"]
        found[f'{value}"' if is_text else str(int(value))] += 1
    cells = [(found[text], mean) for text, mean in expected.items() if mean >= 5]
    rest = 400 - sum(count for count, _ in cells), 400 - sum(mean for _, mean in cells)
    cells += [rest] if rest[1] > 1 else []
    assert len(cells) > 1
    assert sum((count - mean) ** 2 / mean for count, mean in cells) < 25.7  # one in ten thousand, of five degrees of freedom


_MANY = _schema(
    {"enum": NESTED},
    {"type": "array", "items": {"enum": ["a", "ab", "b"]}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    {"type": "string", "maxLength": 3},
    {"type": "integer", "minimum": 0, "maximum": 12},
)


def test_rows_samples_streams_and_batches_write_the_same() -> None:
    model = random_model()
    sampler = samplers.multinomial(3, temperature=2.0)
    write = continuous(generate.json(model, _MANY, sampler=sampler, exact_fields=True))
    prompts = [PROMPT, "12 a", "red: ab"]
    whole = write(prompts, rng=4, max_tokens=90)
    for value in (value for group in whole.values for value in group):
        assert value["a"] in NESTED
        assert value["c"] in (True, False, None)
    stream = write.stream(prompts, rng=4, max_tokens=90)
    for _ in stream:
        pass
    assert stream.state == whole
    engine = engine_of(model)
    before, engine.max_rows = engine.max_rows, 2  # rows that wait for scores fill all the room
    try:
        assert write(prompts, rng=4, max_tokens=90) == whole
    finally:
        engine.max_rows = before
    assert not engine.num_running


def test_a_choice_after_thoughts_has_room_in_a_full_engine() -> None:
    model = random_model()
    choose = generate.choice(model, NESTED, thinking=Thinking(begin="[T]", end="e", max_tokens=12))
    prompts = [PROMPT, "12 a", "red: ab"]
    expected = [choose(prompt) for prompt in prompts]
    engine = engine_of(model)
    before, engine.max_rows = engine.max_rows, 2
    try:
        assert choose(prompts) == expected
    finally:
        engine.max_rows = before


def test_rows_that_wait_for_scores_leave_them_room_for_keys_and_values() -> None:
    """The texts of six rows have no room beside them in any of these budgets; nothing would end if all rows waited for them."""
    schema = {"type": "object", "properties": {name: {"enum": ["yes", "no", "abc", "the red"]} for name in "ku"}, "required": ["k", "u"]}
    prompts, per_token = [f"the name {i}" for i in range(6)], 2 * 2 * 2 * 8 * 8  # two layers, keys and values, two heads of eight float64

    def values(**options: Any) -> list[list[Any]]:
        model = models.from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=0, **options)
        found = continuous(generate.json(model, {**schema, "additionalProperties": False}, exact_fields=True))(
            prompts, max_tokens=60
        ).values
        assert engine_of(model).num_running == 0
        return [list(group) for group in found]

    expected = values()
    for num_tokens in (400, 160, 100):
        assert expected == values(kv_budget_bytes=num_tokens * per_token)


def test_templates_thoughts_and_copies_write_the_same() -> None:
    model, schema = random_model(), _schema({"enum": NESTED}, {"type": "boolean"})
    write = continuous(generate.json(model, schema, exact_fields=True))
    template = Template(PROMPT + "{{ json('x', schema, exact_fields=true) }}-{{ gen('y', max_tokens=2) }}")
    assert template.run(model, schema=schema).captures["x"] == write(PROMPT).value
    thought = write(PROMPT, thinking=Thinking(begin="[T]", end="e", max_tokens=12))
    piece = thought.rows[0][0].piece
    assert piece is not None
    assert thought.value == write(thought.tokens[..., : piece.start]).value
    copied = pickle.loads(pickle.dumps(generate.json(models.tiny(), schema, exact_fields=True)))  # noqa: S301
    assert copied.fields is not None


@cache
def _greedy_of_many() -> SequenceState:
    return continuous(generate.json(random_model(), _MANY, exact_fields=True))([PROMPT, "12 a"], max_tokens=90)


@pytest.mark.parametrize("options", [{"draft": "lookup"}, {"max_retries": 3}])
def test_drafts_and_limits_of_retries_change_nothing(options: dict[str, Any]) -> None:
    written = continuous(generate.json(random_model(), _MANY, exact_fields=True, **options))([PROMPT, "12 a"], max_tokens=90)
    assert _greedy_of_many() == written


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_forward_that_fails_is_tried_again(at: int) -> None:
    model = random_model()
    with failing(model, at):
        again = continuous(generate.json(model, _MANY, exact_fields=True))([PROMPT, "12 a"], max_tokens=90)
    assert again.values == _greedy_of_many().values


@pytest.mark.parametrize("kind", ["recurrent", "other"])
def test_other_models_write_fields_by_the_same_law(kind: str) -> None:
    network = recurrent_network() if kind == "recurrent" else random_network("llama", seed=5)
    model = HuggingFaceModel(network, random_model().tokenizer)
    texts = [option + '"' for option in NESTED]
    state = continuous(generate.json(model, _schema({"enum": NESTED}, {"type": "boolean"}), exact_fields=True))(PROMPT)
    before, _ = _field(model, state.rows[0][0], texts)
    law = _by_text(model, _walked(model, before, texts, _tails(["true", "false"])), texts)
    assert law[state.value["a"] + '"'] == pytest.approx(max(law.values()))


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ({"policies": [policies.ban(["zz"])]}, samplers.greedy()),
        ({"stop_at": "zz"}, samplers.greedy()),
        ({}, samplers.multinomial(top_k=3)),
        ({}, samplers.beam_search(2)),
    ],
)
def test_what_acts_on_single_tokens_draws_them(options: dict[str, Any], sampler: Any) -> None:
    model, schema = random_model(), _schema({"enum": NESTED})
    exact, masked = (continuous(generate.json(model, schema, sampler=sampler, exact_fields=one)) for one in (True, False))
    assert exact(PROMPT, rng=2, **options) == masked(PROMPT, rng=2, **options)


def test_a_field_after_a_state_that_was_cut_is_written_as_before() -> None:
    model = random_model()
    write = continuous(generate.json(model, _MANY, exact_fields=True))
    whole = write(PROMPT, max_tokens=90)
    for cut in (1, 4):  # before the first field
        assert write.resume(write(PROMPT, max_tokens=cut), max_tokens=90).values == whole.values


# -- where fields begin --------------------------------------------------------------------------------------------


def _place(text: str) -> tuple[bool, int] | None:
    """The place at the end of the beginning of a JSON text, character by character."""
    in_string, is_escape, opened, last = False, False, 0, ""
    for i, char in enumerate(text):
        if in_string:
            is_escape, was = char == "\\" and not is_escape, is_escape
            if char == '"' and not was:
                in_string, last = False, '"'
        elif char == '"':
            in_string, opened, is_escape = True, i + 1, False
        elif not char.isspace():
            last = char
    if in_string:
        return None if is_escape else (True, len(text.encode()) - len(text[:opened].encode()))
    return (False, 0) if last in ("", ":", ",", "[") else None


@settings(max_examples=60, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('a"\\:,{é', max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k":', max_size=2), inner, max_size=3),
        max_leaves=6,
    ),
    data=st.data(),
)
def test_the_place_at_the_end_of_a_text_is_that_of_reading_it(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    text = text[: data.draw(st.integers(0, len(text)))]
    found = place_of(text.encode())
    assert _place(text) == (None if found is None else tuple(found))


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"enum": ["a", "b"]}, ['"a"', '"b"']),
        ({"anyOf": [{"const": "x"}, {"type": "boolean"}, {"type": "null"}]}, ['"x"', "false", "null", "true"]),
        ({"const": "a"}, []),
        ({"type": "string"}, []),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "object"}]}, []),
        ({"type": "string", "pattern": "^[ab]{2}$"}, ['"aa"', '"ab"', '"ba"', '"bb"']),
        ({"type": "string", "enum": [f"name {i}" for i in range(129)]}, []),
        ({"type": "string", "enum": ["a" * 3000, "b" * 3000]}, []),
    ],
)
def test_the_values_of_a_field_are_those_of_its_schema(schema: dict[str, Any], texts: list[str]) -> None:
    fsm = generate.json(random_model(), _schema(schema)).constraint.token_fsm  # type: ignore[union-attr]
    finder, at = FieldFinder(fsm.automaton), fsm.automaton.next_state(fsm.initial_state, b'{"a":')
    assert texts == sorted({value.text.decode() for value in finder.values(at, in_string=False)})
    if texts and all(text.startswith('"') for text in texts):
        assert texts == [value.text.decode() for value in finder.values(fsm.automaton.next_state(at, b'"'), in_string=True)]


def test_the_key_of_a_member_is_no_field() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "minProperties": 1}
    fsm = generate.json(random_model(), {**schema, "additionalProperties": False}).constraint.token_fsm  # type: ignore[union-attr]
    finder = FieldFinder(fsm.automaton)
    for text in (b"{", b'{"'):
        assert not finder.may_begin(fsm.automaton.next_state(fsm.initial_state, text))


# -- what is probable anyway -----------------------------------------------------------------------------------------

BASES = ["the thing is>", "12"]


def _conditional(model: HuggingFaceModel, ids: tuple[int, ...], texts: list[str]) -> dict[str, float]:
    return _by_text(model, _walked(model, ids, texts, _tails(["true", "false"])), texts)


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, "red: ab", PROMPT]])
def test_fields_are_calibrated_by_the_same_beginning_behind_prompts_without_content(prompts: list[str]) -> None:
    model, texts = random_model(), [option + '"' for option in NESTED]
    write = continuous(generate.json(model, _schema({"enum": NESTED}, {"type": "boolean"}), exact_fields=True))
    with pytest.warns(CalibrationWarning, match="less than 1 %"):
        state = write(prompts, against=BASES)
    for row in (group[0] for group in state.rows):
        before, _ = _field(model, row, texts)
        written = before[row.piece.start :]
        own = _conditional(model, before, texts)
        priors = [_conditional(model, (*_ids(model, base), *written), texts) for base in BASES]
        ratio = {text: own[text] / sum(prior[text] for prior in priors) for text in texts}
        assert ratio[row.value["a"] + '"'] == pytest.approx(max(ratio.values()))


def _ids(model: HuggingFaceModel, prompt: str) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(prompt, add_special_tokens=True))


def test_the_values_of_a_field_are_calibrated_in_the_same_way() -> None:
    model = random_model()
    state = continuous(generate.json(model, _schema({"enum": NESTED}, {"type": "boolean"})))(PROMPT)
    plain = state.alternatives("a")
    with pytest.warns(CalibrationWarning, match="less than 1 %"):
        found = state.alternatives("a", against=BASES)
    assert found.conditional == pytest.approx(plain.conditional)
    row = state.rows[0][0]
    texts = [option + '"' for option in NESTED]
    before, _ = _field(model, row, texts)
    logs = plain_logs(model)
    sums = dict.fromkeys(NESTED, 0.0)
    for base in BASES:  # any token that begins with the last one of a spelling counts
        ids, chances = (*_ids(model, base), *before[row.piece.start :]), dict[str, float]()
        for option in NESTED:
            *inner, last = model.tokenizer.encode_inside(option + '"', ids)
            rest = model.tokenizer.token_bytes[last] or b""
            log = sum(float(logs(ids + tuple(inner[:i]))[token_id]) for i, token_id in enumerate(inner))
            ends = [i for i, data in enumerate(model.tokenizer.token_bytes) if data and data.startswith(rest)]
            chances[option] = math.exp(log + float(logs(ids + tuple(inner))[ends].logsumexp(0)))
        for option in NESTED:
            sums[option] += chances[option] / sum(chances.values()) / len(BASES)
    assert found.prior == pytest.approx(sums, rel=1e-5)
    ratio = {option: found.conditional[option] / sums[option] for option in NESTED}
    assert dict(found) == pytest.approx({option: one / sum(ratio.values()) for option, one in ratio.items()}, rel=1e-5)


def test_what_no_prompt_calibrates_is_refused() -> None:
    model, schema = random_model(), _schema({"enum": NESTED})
    for options in ({"against": "batch"}, {"against": BASES, "stop_at": "zz"}, {"against": BASES, "heal": True}):
        with pytest.raises(OptionError, match="prompts without content"):
            generate.json(model, schema, exact_fields=True)(PROMPT, **options)
    with pytest.raises(OptionError, match="exact_fields"):
        generate.json(model, schema)(PROMPT, against=BASES)
    state = continuous(generate.json(model, schema))(PROMPT)
    with pytest.raises(OptionError, match="without content"):
        state.alternatives("a", against="batch")


def test_an_extractor_takes_rows_without_content() -> None:
    model, schema = random_model(), _schema({"enum": NESTED})
    extract = Extractor(model, schema, "{{ text }}>", against=["N/A", "..."], max_tokens=60)
    with pytest.warns(CalibrationWarning):
        expected = generate.json(model, schema, exact_fields=True)("red>", against=["N/A>", "...>"])
    with pytest.warns(CalibrationWarning):
        (record,) = extract(["red"])
    assert record["a"] == expected["a"]
    assert "against" not in Extractor(model, schema).settings
    with pytest.raises(OptionError, match="against"):
        Extractor(model, schema, against="N/A")
