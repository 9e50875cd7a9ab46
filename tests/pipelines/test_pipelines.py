"""Rows to records: in their order, without a barrier, whatever fails, whatever they come in."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import Any, Literal

import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from outlines_cont import Engine, continuous, engine_of, generate, models, pipelines, samplers
from outlines_cont.errors import OptionError, UnknownOption
from outlines_cont.events.json_paths import byte_ranges, leaves
from outlines_cont.pipelines import Failure, Outcome, RowError, SetupError
from outlines_cont.pipelines.calibration import agreement
from outlines_cont.pipelines.record_schema import RecordSchema
from outlines_cont.state.row import FORCED
from tests.examples import examples
from tests.fakes import EOS, FakeTokenizer, random_model, scripted_model

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["order", "invoice"]}, "notes": {"type": "string", "maxLength": 9}},
    "required": ["kind", "notes"],
    "additionalProperties": False,
}
TEXTS = [f"message {'x' * (i % 7)} {i}" for i in range(12)]


@cache
def extractor(batch_size: int = 4, **options: Any) -> pipelines.Extractor:
    schema = options.pop("schema", None)
    return pipelines.Extractor(
        random_model("llama"), RecordSchema.of(json.loads(schema) if schema else SCHEMA), batch_size=batch_size, **options
    )


@cache
def alone(text: str) -> Any:
    """The record of a text that runs alone, by a plain call."""
    return generate.json(random_model("llama"), SCHEMA)(f"Message: {text}\nRecord: ", max_tokens=200)


# --- rows in flight


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "", 3, None]), max_size=9), st.integers(1, 6), st.booleans())
def test_rows_come_out_in_their_order_as_if_each_ran_alone(rows: list[Any], width: int, are_dicts: bool) -> None:
    given = [{"id": 1, "text": row} if are_dicts else row for row in rows]

    outcomes = list(extractor(width, max_tokens=200).outcomes(given))

    assert len(rows) == len(outcomes)
    for row, outcome in zip(rows, outcomes, strict=True):
        if isinstance(row, str) and row:
            assert outcome.failure is None
            assert alone(row) == outcome.record
        else:
            assert outcome.failure is not None
            assert outcome.failure.type == "RowError"


def test_a_row_that_ends_makes_room_at_once() -> None:
    """Rows with few and with many tokens in turn: with a barrier, each group would take as long as its longest row."""
    tokenizer = FakeTokenizer()

    def script(ids: list[int]) -> dict[int, float]:
        prompt, _, written = tokenizer.text_bytes(ids).rpartition(b">")
        rest = (b'"a"' if b"short" in prompt else b'"' + b"x" * 60 + b'"')[len(written) :]
        return {tokenizer._ids[rest[:1]] if rest else EOS: 20.0}

    model = scripted_model(script)
    prompts = [f"{i} {'short' if i % 2 else ''}>" for i in range(16)]
    made = pipelines.Extractor(model, {"type": "string"}, lambda row: row["text"], batch_size=4, max_tokens=200)

    outcomes = list(made.outcomes(prompts))

    assert ["a" if i % 2 else "x" * 60 for i in range(16)] == [outcome.record for outcome in outcomes]
    assert engine_of(model).stats.steps < 3 * 64  # four groups with a barrier: 4 * 63 at least


def test_only_so_many_rows_are_read_ahead() -> None:
    width, read = 2, 0
    furthest = 0

    def rows() -> Iterator[str]:
        nonlocal read
        for number in range(90):
            read += 1
            yield TEXTS[number % 12]

    for number, _ in enumerate(extractor(width, schema='{"enum": ["a", "bb"]}').outcomes(rows())):
        furthest = max(furthest, read - number)
    assert read == 90
    assert furthest <= 16 * width


def test_who_stops_leaves_no_row_behind() -> None:
    made = extractor(4, sampler=samplers.multinomial(temperature=2.0))
    outcomes = made.outcomes(TEXTS)
    next(outcomes)
    assert engine_of(made.model).num_running
    outcomes.close()  # type: ignore[attr-defined]
    assert not engine_of(made.model).num_running


@pytest.mark.parametrize("most", [0, 1, 3])
def test_rows_for_which_there_is_no_memory_run_in_smaller_numbers(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step

    def limited(engine: Engine) -> None:
        if sum(len(job.rows) for job in [*engine._scheduler.jobs, *engine._scheduler.submitted]) > most:
            raise torch.OutOfMemoryError("no room")
        step(engine)

    monkeypatch.setattr(Engine, "step", limited)
    outcomes = list(extractor(8, max_tokens=200).outcomes(TEXTS[:7]))
    if most:
        assert [alone(text) for text in TEXTS[:7]] == [outcome.record for outcome in outcomes]
    else:
        assert [outcome.failure and outcome.failure.type for outcome in outcomes] == ["OutOfMemoryError"] * 7


def test_a_function_makes_prompts_and_its_error_is_that_of_the_row() -> None:
    def prompt(row: Any) -> Any:
        return [{"role": "user", "content": "Hi"}] if row["n"] == 2 else f"{1 / row['n']}"

    made = pipelines.Extractor(random_model("llama"), {"enum": ["a", "b"]}, prompt)
    outcomes = list(made.outcomes([{"n": 1}, {"n": 0}, {"n": 2}]))
    assert [o.failure and o.failure.type for o in outcomes] == [None, "ZeroDivisionError", "NoChatTemplate"]


def test_a_serializer_or_a_validator_that_refuses_is_the_error_of_its_row() -> None:
    schema = RecordSchema({"enum": [1, 2, 3]}, "{}", lambda value: float("nan") if value == 2 else value)
    made = pipelines.Extractor(random_model("llama"), schema, sampler=samplers.multinomial(), batch_size=3)
    outcomes = list(made.outcomes(TEXTS))
    assert {None, "ValueError"} == {outcome.failure and outcome.failure.type for outcome in outcomes}
    assert all(outcome.record in (1, 3) for outcome in outcomes if outcome.failure is None)


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    model = random_model("llama")
    for options in ({"samples": -1}, {"batch_size": 0}, {"sampler": samplers.multinomial(3)}, {"sampler": samplers.beam_search(2)}):
        with pytest.raises(OptionError):
            pipelines.Extractor(model, SCHEMA, **options)  # type: ignore[arg-type]
    with pytest.raises(pipelines.SetupError, match="not JSON"):
        pipelines.Extractor(model, "{")
    with pytest.raises(pipelines.SetupError, match="function"):
        pipelines.Extractor(model, len)
    with pytest.raises(pipelines.SetupError, match="uses none"):
        pipelines.Extractor(model, SCHEMA, "Record: ")


# --- what is known of a record


def test_the_log_probabilities_of_a_record_and_its_values_are_those_of_its_tokens() -> None:
    made = extractor(4, max_tokens=200)
    (outcome,) = made.outcomes(TEXTS[:1])
    state = continuous(generate.json(made.model, SCHEMA))(f"Message: {TEXTS[0]}\nRecord: ", max_tokens=200)
    assert outcome.weight == pytest.approx(float(state.weights[0, 0]), abs=1e-5)
    row = state.rows[0][0]
    text, told = b"", dict[str, float]()
    spans = byte_ranges(made.model.tokenizer.text_bytes(row.token_ids[row.piece.start :]))  # type: ignore[union-attr]
    for token_id, logprob in zip(row.token_ids[row.piece.start :], row.sampling_logprobs[row.piece.start :], strict=True):  # type: ignore[union-attr]
        part = made.model.tokenizer.text_bytes([token_id])
        for path, (start, end) in spans.items():
            if start < len(text) + len(part) and len(text) < end:
                told[path] = told.get(path, 0.0) + logprob
        text += part
    assert set(told) == {"kind", "notes"}
    assert outcome.logprobs == pytest.approx(told)
    start = row.piece.start  # type: ignore[union-attr]
    assert (start, len(row.token_ids) - start) == (outcome.usage.prompt_tokens, outcome.usage.tokens)
    assert row.kinds[start:].count(FORCED) == outcome.usage.forced_tokens > 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_every_value_is_found_where_it_stands(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii).encode()
    found = byte_ranges(text)
    expected = leaves(value)
    assert list(expected) == list(found) or len(set(expected)) < len(list(expected))
    assert expected == {path: json.loads(text[start:end]) for path, (start, end) in found.items()}


def test_members_of_one_name_are_all_found_and_what_follows_the_value_is_not() -> None:
    text = b' {"a": 1, "b": {"c": []}, "a": [2, "\\"}"]}<|end|>'
    found = {path: text[start:end] for path, (start, end) in byte_ranges(text).items()}
    assert found == {"a": b"1", "b.c": b"[]", "a[0]": b"2", "a[1]": b'"\\"}"'}


@given(json_values, st.lists(json_values, max_size=4))
def test_the_share_of_samples_that_agree(record: Any, samples: list[Any]) -> None:
    found = agreement(record, samples)
    assert leaves(record).keys() == found.keys()
    assert all(share == 1 for share in agreement(record, [record, record]).values())
    for path, share in found.items():
        same = [json.dumps(leaves(s).get(path, ...), default=str) == json.dumps(leaves(record)[path]) for s in samples]
        assert share == sum(same) / max(len(samples), 1)


def test_samples_share_what_the_prompt_has_fed_and_change_no_record() -> None:
    model = random_model("llama", prefix_cache_bytes=2**20)
    texts = [text + " and more" * 9 for text in TEXTS[:3]]
    voting = pipelines.Extractor(model, SCHEMA, samples=3, batch_size=8, max_tokens=200)

    with model.meter() as meter:
        outcomes = list(voting.outcomes(texts))

    assert [alone(text) for text in texts] == [outcome.record for outcome in outcomes]
    assert all(set(outcome.agreement) == {"kind", "notes"} for outcome in outcomes)
    assert {0.0, 1 / 3, 2 / 3, 1.0} >= {share for outcome in outcomes for share in outcome.agreement.values()}
    again = pipelines.Extractor(model, SCHEMA, samples=3, batch_size=1, max_tokens=200).outcomes(texts)
    assert [outcome.agreement for outcome in again] == [outcome.agreement for outcome in outcomes]
    prompts = sum(outcome.usage.prompt_tokens for outcome in outcomes)
    assert meter.fed_tokens < sum(o.usage.tokens + o.usage.sample_tokens for o in outcomes) + 1.5 * prompts
    assert sum(outcome.reused_tokens for outcome in outcomes) == meter.reused_tokens > 2 * prompts


# --- columns


class Address(BaseModel):
    city: str
    zip: int | None = None


class Order(BaseModel):
    """Every kind of column."""

    kind: Literal["order", "invoice"]
    total: Decimal = Field(max_digits=9, decimal_places=2)
    free: Decimal
    due: datetime.date
    at: datetime.datetime
    tags: list[Literal["a", "b"]]
    address: Address
    others: dict[str, int]
    mixed: int | str
    rate: float
    done: bool


ORDER = {
    "kind": "order",
    "total": "12.50",
    "free": "1.2345678901234567890123",
    "due": "2031-05-14",
    "at": "2031-05-14T23:59:60+02:00",
    "tags": ["a", "b"],
    "address": {"city": "Porto", "zip": None},
    "others": {"x": 1},
    "mixed": 3,
    "rate": 2,
    "done": True,
}


def columns_of(schema: Any, **options: Any) -> Any:
    from outlines_cont.pipelines.columns import RecordColumns, shape_of

    return RecordColumns(shape_of(RecordSchema.of(schema)), **options)


class Note(BaseModel):
    kind: Literal["note"]
    lines: list[Address | str]
    one: Address | list[Address]
    others: dict[str, int]


@pytest.mark.parametrize("one", [{"city": "Porto", "zip": None}, [{"city": "Faro", "zip": 1}]])
def test_rows_of_python_have_unions_as_values_and_tables_have_them_as_json(one: Any) -> None:
    record = {"kind": "note", "lines": ["a", {"city": "Porto", "zip": 2}], "one": one, "others": {"x": 1}}
    columns = columns_of(Note)
    (row,) = columns.rows([Outcome(record)])
    assert record == {name: row[name] for name in record}
    (cells,) = columns.table([Outcome(record)]).to_pylist()
    assert record == {
        "kind": cells["kind"],
        "lines": [*map(json.loads, cells["lines"])],
        **{name: json.loads(cells[name]) for name in ("one", "others")},
    }


def test_a_record_that_is_no_object_is_a_column_and_its_agreement_too() -> None:
    schema = columns_of({"type": "integer"}, has_agreement=True).schema()
    assert "record" in schema.names
    assert [member.name for member in schema.field("agreement").type] == ["record"]


def test_columns_have_the_types_of_the_schema() -> None:
    table = columns_of(Order).table([Outcome(ORDER), Outcome(failure=Failure("ValueError", "no")), Outcome(ORDER)])
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "kind": "string",
        "total": "decimal128(9, 2)",
        "free": "string",
        "due": "date32[day]",
        "at": "timestamp[us, tz=UTC]",
        "tags": "list<item: string>",
        "address": "struct<city: string, zip: int64>",
        "others": "string",
        "mixed": "string",
        "rate": "double",
        "done": "bool",
        "error": "string",
        "weight": "double",
        "usage": "struct<prompt_tokens: int64, tokens: int64, forced_tokens: int64, sample_tokens: int64, steps: int64>",
    }
    first, failed, _ = table.to_pylist()
    assert first["total"] == Decimal("12.50")
    assert first["due"] == datetime.date(2031, 5, 14)
    assert first["at"] == datetime.datetime(2031, 5, 14, 22, 0, tzinfo=datetime.UTC)
    assert (first["others"], first["mixed"], first["rate"]) == ('{"x": 1}', "3", 2.0)
    assert first["address"] == {"city": "Porto", "zip": None}
    assert failed["error"] == "ValueError: no"
    assert all(failed[name] is None for name in ORDER)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "int64"),
        ({"type": ["number", "null"]}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "null"}, "null"),
        ({"enum": [1, None]}, "int64"),
        ({"enum": [1, "a"]}, "string"),
        ({"const": True}, "bool"),
        ({"type": "string", "format": "date"}, "date32[day]"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "date32[day]"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "list<item: list<item: int64>>"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, "list<item: int64>"),
        ({"type": "array"}, "list<item: string>"),
        ({"type": "object"}, "string"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}}, "bool"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}, "list<item: string>"),
        ({"items": {"$ref": "#x"}, "type": "array", "$defs": {"x": {"$anchor": "x"}}}, "list<item: string>"),
        (True, "string"),
    ],
)
def test_a_record_that_is_no_object_is_one_column(schema: Any, kind: str) -> None:
    table = columns_of(schema).table([])
    assert table.column_names[0] == "record"
    assert str(table.schema.field("record").type) == kind


def test_members_that_no_schema_names_are_json_in_a_column_of_their_own() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "error": {"type": "string"}}}
    rows = list(columns_of(schema).rows([Outcome({"a": 1, "error": "e", "b": [1]}), Outcome({"error": "f"})]))
    assert [(row["a"], row["record.error"], row["additional"], row["error"]) for row in rows] == [
        (1, "e", '{"b": [1]}', None),
        (None, "f", None, None),
    ]


def test_a_record_that_is_null_has_null_in_each_column() -> None:
    schema = {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}}
    rows = list(columns_of(schema).rows([Outcome(None), Outcome({"a": 1})]))
    assert [(row["a"], row["additional"], row["error"]) for row in rows] == [(None, None, None), (1, None, None)]


def test_a_value_that_its_column_cannot_hold_is_the_error_of_its_row() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    table = columns_of(schema).table([Outcome({"a": 2**63}), Outcome({"a": 2**63 - 1})])
    assert table["a"].to_pylist() == [None, 2**63 - 1]
    assert "expected an integer of 64 bits" in table["error"].to_pylist()[0]


@pytest.mark.parametrize("depth", [5, 3000])
def test_a_schema_of_any_depth_has_a_shape(depth: int) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "additionalProperties": False}
    from outlines_cont.pipelines.columns import shape_of

    kind = str(shape_of(RecordSchema(schema, "", lambda value: value)).arrow())
    assert ("int64" in kind) == (depth == 5)


# --- what rows come in


ROWS = [{"id": 1, "text": TEXTS[0]}, {"id": 2, "text": None}, {"id": 3, "text": TEXTS[2]}]


@cache
def expected() -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "usage"} for row in extractor(4, max_tokens=200)(ROWS)]


def same_rows(rows: list[dict[str, Any]]) -> None:
    for want, row in zip(expected(), rows, strict=True):
        got = {name: row[name] for name in want}
        if want["weight"] is not None:
            want, got = {**want, "weight": 0}, {**got, "weight": round(got["weight"] - want["weight"], 4)}
        assert want == got


def test_lists_columns_and_single_rows() -> None:
    made = extractor(4, max_tokens=200)
    assert [row["kind"] is None for row in expected()] == [False, True, False]
    assert [alone(TEXTS[0])["notes"], None, alone(TEXTS[2])["notes"]] == [row["notes"] for row in expected()]
    assert expected()[1]["error"].startswith("RowError: expected a text in the field 'text', got None")
    found = made({"id": [1, 2, 3], "text": [row["text"] for row in ROWS]})
    same_rows([dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)])
    same_rows(list(made(iter(ROWS))))
    table = made(pyarrow.Table.from_pylist(ROWS))
    assert isinstance(table, pyarrow.Table)
    same_rows(table.to_pylist())
    assert made(TEXTS[0])["kind"] == made({"id": 1, "text": TEXTS[0]})["kind"] == alone(TEXTS[0])["kind"]
    assert made([]) == []
    taken = made({"text": TEXTS[:1], "kind": ["x"], "error": ["y"]})
    assert {"record.kind", "notes", "record.error", "weight", "usage"} == set(taken)
    with pytest.raises(OptionError, match="columns of one length, got 'text' 1, 'id' 2"):
        made({"text": ["a"], "id": [1, 2]})
    with pytest.raises(OptionError, match="expected a list of texts or dicts"):
        made(3)


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(ROWS, index=[7, 8, 9])
    found = extractor(4, max_tokens=200)(frame)
    assert list(found.index) == [7, 8, 9]
    assert str(found["weight"].dtype) == "double[pyarrow]"
    same_rows([{k: None if v is pandas.NA else v for k, v in row.items()} for row in found.to_dict("records")])
    assert list(frame.join(found).columns)[:3] == ["id", "text", "kind"]
    assert extractor(4, max_tokens=200)(frame["text"])["notes"].tolist()[0] == expected()[0]["notes"]


def test_frames_of_polars() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(ROWS)
    found = extractor(4, max_tokens=200)(frame)
    same_rows(found.to_dicts())
    assert extractor(4, max_tokens=200)(frame["text"])["notes"].to_list()[0] == expected()[0]["notes"]


def test_datasets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    made = extractor(4, max_tokens=200)
    # The first batch has no record at all: its types are known all the same.
    dataset = datasets.Dataset.from_list([{"id": 0, "text": None}] * 2 + ROWS)
    found = made(dataset)
    assert found.column_names[:3] == ["id", "text", "kind"]
    same_rows(list(found)[2:])
    mapped = datasets.Dataset.from_list(ROWS).map(made, batched=True, batch_size=3, load_from_cache_file=False)
    same_rows(list(mapped))


def test_an_extractor_is_pickled_by_its_arguments() -> None:
    model = models.tiny()
    made = pipelines.Extractor(model, Order, samples=2, batch_size=3)
    again = pickle.loads(pickle.dumps(made))  # noqa: S301
    assert again.model is model
    assert again.columns == made.columns
    assert again.prompt("x") == made.prompt("x")


def test_an_extractor_names_the_option_that_was_meant_and_what_comes_first() -> None:
    model = random_model("llama")
    with pytest.raises(UnknownOption, match=r"expected options of `Extractor`.*Did you mean 'max_tokens'\?") as raised:
        pipelines.Extractor(model, SCHEMA, max_token=3)
    assert str(raised.value).count("`schema`") == 1
    with pytest.raises(OptionError, match="expected a model as the first argument.*The schema comes second"):
        pipelines.Extractor(SCHEMA, model)  # type: ignore[arg-type]
    assert pipelines.Extractor(model, SCHEMA, whitespace="none", force=False).columns  # what `generate.json` takes is taken


# --- fields that a row lacks


@pytest.mark.parametrize("allow_missing", [True, ["body"], {"body"}])
def test_a_template_may_test_what_is_missing(allow_missing: Any) -> None:
    template = "{% if body %}{{ body }}{% else %}-{% endif %}{{ id }}"
    made = pipelines.Extractor(random_model("llama"), SCHEMA, template, allow_missing=allow_missing)
    prompts = [made.prompt({"id": 1, **fields}).text for fields in ({}, {"body": None}, {"body": ""}, {"body": "a"})]
    assert prompts == ["-1", "-1", "-1", "a1"]
    assert made.digest != pipelines.Extractor(random_model("llama"), SCHEMA, template).digest
    untested = pipelines.Extractor(random_model("llama"), SCHEMA, "{{ body }}{{ row.body }}{{ id }}", allow_missing=allow_missing)
    assert [untested.prompt({"id": 1, **fields}).text for fields in ({}, {"body": None})] == ["1", "1"]


def test_wrong_names_of_fields_that_may_be_missing_are_refused() -> None:
    with pytest.raises(SetupError, match=r"\('text'\) in `allow_missing`, got 'Text'. Did you mean 'text'\?"):
        pipelines.Extractor(random_model("llama"), SCHEMA, allow_missing=["Text"])
    with pytest.raises(SetupError, match="True or a list of names, got the text 'text'"):
        pipelines.Extractor(random_model("llama"), SCHEMA, allow_missing="text")
    with pytest.raises(OptionError, match="`allow_missing` with a template, got it with a function"):
        pipelines.Extractor(random_model("llama"), SCHEMA, lambda row: row["a"], allow_missing=True)


def test_a_field_of_the_row_is_found_however_the_template_names_it() -> None:
    def needed(template: str) -> list[str]:
        return pipelines.Extractor(random_model("llama"), SCHEMA, template, text_field="body").needed

    assert needed("{{ text }}{{ row.due }}{{ row['due date'] }}") == ["body", "due", "due date"]
    assert needed("{{ text }}{{ row }}{{ row.items() }}{{ schema }}") == ["body"]
    everything = pipelines.Extractor(random_model("llama"), SCHEMA, "{{ row|length }}{{ row.a }}")
    assert everything.prompt({"a": 1, "b": None}).text == "21"
    with pytest.raises(RowError, match="a value that JSON has in the field 'b', got bytes"):
        everything.prompt({"a": 1, "b": b"x"})
    assert pipelines.Extractor(random_model("llama"), SCHEMA, "{{ row.a }}").prompt({"a": 1, "b": b"x"}).text == "1"


def test_values_of_numpy_and_dates_are_written_as_python_writes_them() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    made = pipelines.Extractor(random_model("llama"), SCHEMA, "{{ a }}")
    day = datetime.datetime(2030, 1, 2, 3)
    for value, text in [
        (numpy.int64(3), "3"),
        (numpy.array([1.5, 2.0]), "[1.5, 2.0]"),
        (numpy.datetime64("2030-01-02T03", "ns"), day.isoformat()),
        (day, day.isoformat()),
        (Decimal("1.20"), "1.20"),
        ({"b": [day.date(), (1, 2)]}, "{'b': ['2030-01-02', [1, 2]]}"),
    ]:
        assert made.prompt({"a": value}).text == text
    with pytest.raises(RowError, match="the field 'a', got None"):
        made.prompt({"a": numpy.datetime64("NaT")})


@pytest.mark.parametrize("schema", [Address(city="a"), Field(default=3), 3, [1, 2], b"{}"])
def test_an_instance_is_no_schema(schema: Any) -> None:
    with pytest.raises(SetupError, match="expected a (class|pydantic model)"):
        pipelines.Extractor(random_model("llama"), schema)
