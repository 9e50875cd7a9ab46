"""Generators through the public names: values, streams, stops, limits, and bad input."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import random
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

import pydantic
import pytest
import torch

import fsm
from fsm import TokenFSM
from outlines_cont import continuous, generate, models, policies, samplers
from outlines_cont.errors import (
    ContextLengthError,
    EmptyPrompt,
    IncompleteOutput,
    InvalidLogits,
    MissingEOS,
    ModelMismatch,
    NoChatTemplate,
    OptionError,
    OutlinesContError,
    PromptTypeError,
    ResumeError,
    SampleMismatch,
)
from tests.examples import first
from tests.fakes import END_OF_TURN, EOS, FakeTokenizer, fresh_model, random_model, random_network, saying, scripted_model


class Record(pydantic.BaseModel):
    name: Literal["anna", "an apple"]
    age: int = pydantic.Field(ge=0, le=99)


class Color(enum.Enum):
    RED = "red"
    GREEN = 7


def test_values_have_the_type_that_the_generator_says() -> None:
    model = scripted_model(saying('{"name": "anna", "age": 20}'))
    assert Record(name="anna", age=20) == generate.json(model, Record)(">")
    assert generate.json(model, Record.model_json_schema())(">") == {"name": "anna", "age": 20}
    assert generate.regex(model, r"\{.{1,40}\}")(">") == '{"name": "anna", "age": 20}'
    assert generate.text(model)(">") == '{"name": "anna", "age": 20}'
    assert generate.json(scripted_model(saying("[1, 2]")), '{"type": "array", "items": {"type": "integer"}}')(">") == [1, 2]
    assert generate.fsm(scripted_model(saying("ab")), fsm.choice(["a"]) + fsm.choice(["b", "c"]))(">") == "ab"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "-120", -120),
        (float, "12.5e3", 12500.0),
        (Decimal, "-24.50", Decimal("-24.50")),
        (bool, "true", True),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29)),
        (datetime.time, "23:59:01", datetime.time(23, 59, 1)),
        (datetime.datetime, "1999-12-31T00:00:00Z", datetime.datetime(1999, 12, 31, tzinfo=datetime.UTC)),
        (uuid.UUID, "12345678-1234-5678-1234-567812345678", uuid.UUID("12345678-1234-5678-1234-567812345678")),
        (Color, "7", Color.GREEN),
        (Literal["yes", 3], "3", 3),
    ],
)
def test_formats_become_values_of_their_type(kind: Any, text: str, value: object) -> None:
    got = generate.format(scripted_model(saying(text)), kind)(">")
    assert (value, type(value)) == (got, type(got))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            datetime.date,
            ["2000-02-29", "1996-02-29", "2023-11-30", "0004-02-29"],
            ["1900-02-29", "2023-02-29", "2023-04-31", "2023-13-01", "0000-01-01"],
        ),
        (int, ["0", "-7", "42"], ["-0", "007", "", "1.0"]),
        (Decimal, ["0.50", "-12", "9999999999999999999.1"], ["1e3", "NaN", "Infinity", "1.", ".5", "+1", "01"]),
        (float, ["0.5", "-1e-9", "3"], [".5", "1.", "00", "1e999"]),
    ],
)  # fmt: skip
def test_formats_know_what_is_a_value(kind: Any, good: list[str], bad: list[str]) -> None:
    from outlines_cont.generation.formats import format_of

    chosen = format_of(kind)
    for text in good:
        assert chosen.expression.accepts(text)
        chosen.parse(text)
    assert not [text for text in bad if chosen.expression.accepts(text)]


def test_other_types_and_options_that_look_the_same_are_refused() -> None:
    with pytest.raises(OptionError, match=r"expected int, float, Decimal, bool, date, .* got <class 'list'>"):
        generate.format(random_model(), list)
    with pytest.raises(OptionError, match="values that differ as text"):
        generate.format(random_model(), Literal[1, "1"])


def test_values_are_nested_by_batch_and_sample_without_dimensions_of_one() -> None:
    model = random_model()
    for samples, prompts, shape in [(1, "a", ()), (1, ["a"], ()), (3, "a", (3,)), (1, ["a", "b"], (2,)), (3, ["a", "b"], (2, 3))]:
        values = generate.choice(model, ["yes", "no"], sampler=samplers.multinomial(samples))(prompts, rng=1)
        assert shape == _shape(values)


def _shape(values: Any) -> tuple[int, ...]:
    return (len(values), *_shape(values[0])) if isinstance(values, list) else ()


def test_every_end_of_text_ends_a_piece() -> None:
    for end in (EOS, END_OF_TURN):
        model = scripted_model(lambda ids, end=end: {end: 9.0} if ids[-1] == 70 else {70: 9.0})  # type: ignore[misc]
        model.hugging_face.generation_config.eos_token_id = [EOS, END_OF_TURN]
        model = models.from_transformers(model.hugging_face, FakeTokenizer())
        state = continuous(generate.text(model))("a>")
        assert (state.finish_reasons[0][0], state.rows[0][0].token_ids[-1]) == ("stop", 70)


def test_ids_without_text_are_never_sampled() -> None:
    network = random_network("llama")
    for model in (models.from_transformers(network, FakeTokenizer()),):
        spelled = {i for i, data in enumerate(model.tokenizer.token_bytes) if data}
        state = continuous(generate.text(model, sampler=samplers.multinomial(8, temperature=90.0)))("a", max_tokens=40, rng=2)
        assert {i for group in state.rows for row in group for i in row.token_ids[2:]} <= spelled


def test_forced_text_goes_in_as_one_chunk_and_can_be_switched_off() -> None:
    model = random_model()
    texts = ["the blue name", "the blue ship"]
    with model.meter() as forced:
        value = generate.choice(model, texts, exact=False)("a: ")
    with model.meter() as sampled:
        generate.choice(model, texts, exact=False, force=False)("a: ")
    assert value in texts
    assert forced.sampled_tokens <= 2
    assert sampled.forced_tokens == 0
    assert forced.forwards < sampled.forwards


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_a_long_forced_text_goes_in_by_kilobytes_with_the_tokens_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    words = ["forever", "é", "a", "the blue", "12", "\n", "naïve 🙂", "x" * 12]
    text = " ".join(rng.choice(words) for _ in range(600))[: rng.randrange(1_100, 2_000)]
    model = models.tiny()
    write = continuous(generate.regex(model, f"{re.escape(text)}[0-9]"))
    with model.meter() as meter:
        state = write("a: ", max_tokens=4_000)
    before = model.tokenizer.encode("a: ")
    expected = model.tokenizer.encode_inside(text, before)
    found = list(state.rows[0][0].token_ids[len(before) :])
    assert str(state)[:-1] == "a: " + text
    assert found[: len(expected) - 8] == expected[:-8]
    assert meter.forwards <= 12


def test_a_step_reads_a_small_part_of_a_forced_text_of_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    read, next_state = [0], TokenFSM.next_state

    def counted(token_fsm: TokenFSM, state: int, token_id: int) -> int:
        read[0] += 1
        return next_state(token_fsm, state, token_id)

    monkeypatch.setattr(TokenFSM, "next_state", counted)
    for end in ("eos", "free"):
        state = continuous(generate.regex(models.tiny(), "(a{1000}){1000}", end=end))("a", max_tokens=16)
        assert (state.finish_reasons, len(str(state)) > 16) == ([["length"]], True)
        assert read[0] < 8_000


def test_a_piece_that_was_cut_is_an_error_for_a_constraint_and_a_value_for_text() -> None:
    model = scripted_model(saying('{"name": "anna", "age": 20}'))
    assert generate.text(model)(">", max_tokens=3) == '{"n'
    with pytest.raises(IncompleteOutput, match="Raise `max_tokens`") as caught:
        generate.json(model, Record, force=False)(">", max_tokens=4)
    assert (caught.value.reason, caught.value.results) == ("length", None)
    assert caught.value.text.startswith('{"')


def test_a_row_that_fails_leaves_the_others_their_values() -> None:
    def script(ids: list[int]) -> dict[int, float]:
        if model.tokenizer.text_bytes(ids).startswith(b"bad>ye"):
            return {5: float("nan")}
        return saying("yes")(ids)

    model = scripted_model(script)
    generator = generate.regex(model, "yes|no", force=False)
    with pytest.raises(InvalidLogits, match="expected finite logits") as caught:
        generator([">", "bad>", "c>"])
    assert caught.value.results == ["yes", None, "yes"]
    errors: Any = caught.value.errors
    assert [None, caught.value, None] == errors
    state = continuous(generator)([">", "bad>", "c>"])
    assert state.finish_reasons == [["constraint"], ["error"], ["constraint"]]
    assert [error[0] is not None for error in state.errors] == [False, True, False]
    # A row that has failed is left alone; the others go on.
    again = continuous(generator)(state + "!>")
    assert again.values == [["yes"], [None], ["yes"]]
    assert list(again) == [">yes!>yes", "bad>ye!>", "c>yes!>yes"]


def test_a_text_that_the_parser_refuses_is_an_error_of_its_row() -> None:
    def picky(text: str) -> str:
        if text == "no":
            raise ValueError("never no")
        return text

    model = scripted_model(lambda ids: saying("no" if b"b>" in model.tokenizer.text_bytes(ids) else "yes")(ids))
    generator = dataclasses.replace(generate.choice(model, ["yes", "no"], exact=False), parse=picky)
    with pytest.raises(ValueError, match="never no") as caught:
        generator(["a>", "b>"])
    assert caught.value.results == ["yes", None]  # type: ignore[attr-defined]
    state = continuous(generator)(["a>", "b>"])
    assert (state.finish_reasons, state.values) == ([["constraint"], ["error"]], [["yes"], [None]])


def test_a_constrained_text_that_a_stop_text_cuts_is_incomplete_unless_it_conforms() -> None:
    model = scripted_model(saying("abcabc"))
    assert generate.regex(model, "[abc]+")(">", stop_at="c") == "ab"
    with pytest.raises(IncompleteOutput, match="a stop text cut it to 'ab'") as caught:
        generate.regex(model, "(abc){2}", force=False)(">", stop_at="c")
    assert caught.value.reason == "stop"


def test_a_stream_gives_whole_characters_as_they_come() -> None:
    model = scripted_model(saying("a日🙂b"))
    assert list(generate.text(model).stream(">")) == ["a", "日", "🙂", "b"]
    with pytest.raises(IncompleteOutput):
        list(generate.json(model, {"const": "abc"}, force=False).stream(">", max_tokens=2))


def test_generation_ends_where_the_context_is_full() -> None:
    model = random_model("gpt2")
    prompt = "x" * 250
    state = continuous(generate.text(model))(prompt)
    assert (state.shape[2], state.finish_reasons) == (256, [["length"]])
    again = continuous(generate.text(model))(state)
    assert (again.value, again.finish_reasons) == ("", [["length"]])


def test_resume_goes_on_only_with_what_was_cut() -> None:
    model = random_model()
    write = continuous(generate.json(model, Record))
    fresh = continuous(generate.text(model))("the", max_tokens=1)
    with pytest.raises(ResumeError, match="text was appended since"):
        write.resume(fresh + "x")
    with pytest.raises(ResumeError, match="Resume with the generator that made it"):
        continuous(generate.regex(model, "[0-9]{30}")).resume(write("the", max_tokens=2))
    whole = write("the")
    assert whole == write.resume(whole)
    stopped = continuous(generate.text(model))("the", max_tokens=3)
    assert continuous(generate.text(model))("the", max_tokens=9) == continuous(generate.text(model)).resume(stopped, max_tokens=6)


def _generators() -> dict[str, Any]:
    return {"text": generate.text(random_model()), "choice": generate.choice(random_model(), ["yes", "no"])}


@pytest.mark.parametrize("kind", ["text", "choice"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": 0}, OptionError, "expected an int, 1 or more, or None as `max_tokens`, got 0"),
        ({"stop_at": ""}, OptionError, "received ''"),
        ({"stop_at": ["a", ""]}, OptionError, "received ''"),
        ({"stop_at": [3]}, OptionError, "got 3"),
        ({"stop_at": 3}, OptionError, "as `stop_at`, got 3"),
        ({"rng": -1}, OptionError, "expected a seed"),
        ({"rng": "one"}, OptionError, "as `rng`, got str"),
        ({"prompt": 3}, PromptTypeError, "got int"),
        ({"prompt": b"bytes"}, PromptTypeError, "got bytes"),
        ({"prompt": []}, PromptTypeError, "got an empty list"),
        ({"prompt": ["a", 3]}, PromptTypeError, "got a list of int, str"),
        ({"prompt": None}, PromptTypeError, "got NoneType"),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, NoChatTemplate, "template="),
        ({"prompt": "x" * 400}, ContextLengthError, "fewer than 256 tokens"),
        ({"prompt": "x" * 255}, ContextLengthError, "got 256"),
        ({"prompt": "\ud800"}, (OutlinesContError, UnicodeError), "surrogate"),
    ],
)
def test_bad_input_is_named_before_anything_runs(kind: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    generator = _generators()[kind]
    given = {"prompt": "a", **options}
    with generator.model.meter() as meter:
        for call in (generator, generator.stream, continuous(generator)):
            with pytest.raises(error, match=message):
                call(given["prompt"], **{name: value for name, value in given.items() if name != "prompt"})
    assert meter.forwards == 0


def test_an_empty_prompt_needs_a_first_token() -> None:
    assert generate.choice(random_model(), ["yes"])("") == "yes"
    bare = models.from_transformers(random_network("llama"), FakeTokenizer(bos=False))
    with pytest.raises(EmptyPrompt, match="adds no token at the beginning"):
        generate.choice(bare, ["yes"])("")


def test_a_model_without_an_end_takes_no_constraint_and_text_only_with_a_limit() -> None:
    model = scripted_model(saying("yes"), eos=False)
    with pytest.raises(MissingEOS, match="Set `eos_token_id`"):
        generate.choice(model, ["yes"])
    with pytest.raises(MissingEOS, match="Pass `max_tokens` or `stop_at`"):
        generate.text(model)(">")
    assert generate.text(model)(">", max_tokens=2) == "ye"
    assert generate.text(model)(">", stop_at="s") == "ye"


def test_a_vocabulary_that_cannot_spell_the_language_is_refused() -> None:
    tokenizer = FakeTokenizer()
    tokenizer.token_bytes = tuple(None if data and b"z" in data else data for data in tokenizer.token_bytes)
    model = models.from_transformers(random_network("llama"), tokenizer)
    with pytest.raises(fsm.VocabularyGap):
        generate.choice(model, ["pizza", "zoo"])
    assert generate.choice(model, ["pizza", "pie"])("a") == "pie"


class OneSample:
    """A sampler of a user that takes the most probable token."""

    num_samples, needs_random, needs_counts = 1, False, False

    def sample(self, logits: torch.Tensor, uniforms: Any, counts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = logits.log_softmax(-1)
        return logprobs.argmax(-1), logprobs.amax(-1)


def test_samples_and_models_must_fit() -> None:
    model = random_model()
    two = continuous(generate.text(model, sampler=samplers.multinomial(2)))("a", max_tokens=1, rng=1)
    with pytest.raises(SampleMismatch, match=r"with 1 sample, or 3, got one with 2. A sampler without `n` draws once"):
        continuous(generate.text(model, sampler=samplers.multinomial(3)))(two, max_tokens=1)
    assert continuous(generate.text(model))(two, max_tokens=1).shape[:2] == (1, 2)
    with pytest.raises(SampleMismatch, match="with 2 samples, as another of the list has, got one with 1"):
        continuous(generate.text(model))([two, continuous(generate.text(model))("a", max_tokens=1)], max_tokens=1)
    with pytest.raises(ModelMismatch, match="Pass its text to this model"):
        generate.text(random_model("gpt2"))(two, max_tokens=1)


SAMPLERS = {
    "greedy": (samplers.greedy(), lambda held: held),
    "multinomial": (samplers.multinomial(), lambda held: held),
    "multinomial 2": (samplers.multinomial(2), lambda held: 2 if held in (1, 2) else None),
    "multinomial 3": (samplers.multinomial(3), lambda held: 3 if held in (1, 3) else None),
    "best_of 2": (samplers.best_of(2), lambda held: held),
    "beam_search 2": (samplers.beam_search(2), lambda held: 2),
    "own": (OneSample(), lambda held: held),
}


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_of_n_takes_a_state_of_one_sample_or_of_n_and_other_samplers_keep_the_number(name: str, held: int) -> None:
    sampler, expected = SAMPLERS[name]
    start = continuous(generate.text(random_model()))("the name", max_tokens=1).fork(held)
    write = continuous(generate.text(random_model(), sampler=sampler))
    if expected(held) is None:
        with pytest.raises(SampleMismatch, match=f"got one with {held}"):
            write(start, max_tokens=2)
        return
    state = write(start, max_tokens=2)
    assert state.num_samples == expected(held)
    assert state.errors == [[None] * state.num_samples]
    assert write([start, "a prompt"], max_tokens=2).shape[:2] == (2, expected(held))
    if name.startswith("multinomial ") and held == 1:
        drawn = continuous(generate.text(random_model(), sampler=samplers.multinomial()))
        assert drawn(start.fork(state.num_samples), max_tokens=2) == state, "n samples of one are one of each of its forks"


def test_equal_constraints_of_a_model_are_compiled_once() -> None:
    model = random_model()
    assert generate.regex(model, "a+b").constraint is generate.regex(model, "a+b").constraint
    assert generate.regex(model, "a+b").constraint is not generate.regex(model, "a+b", force=False).constraint


def test_a_stop_text_inside_forced_text_counts_although_the_limit_falls_behind_it() -> None:
    model = random_model()
    generator = generate.choice(model, ["the blue name of age"])
    for limit in range(3, 12):
        state = continuous(generator)("a: ", max_tokens=limit, stop_at="ue")
        assert (str(state), state.finish_reasons) == ("a: the bl", [["stop"]])
        assert "".join(piece for piece in _until_error(generator.stream("a: ", max_tokens=limit, stop_at="ue"))) == "the bl"


def _until_error(stream: Iterator[str]) -> Iterator[str]:
    try:
        yield from stream
    except IncompleteOutput:
        return


def test_samples_that_share_a_prompt_reuse_no_state() -> None:
    model = fresh_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(3)))
    with model.meter() as meter:
        state = write("the name", max_tokens=2, rng=1)
    assert meter.reused_tokens == 0
    with model.meter() as meter:
        write(state, max_tokens=1)
    assert int(state.cached.sum()) == meter.reused_tokens


def test_the_error_of_one_row_among_several_says_which() -> None:
    model = random_model()
    choice = generate.choice(model, ["yes", "no"])
    alone = choice(["a", "b"])
    with pytest.raises(ContextLengthError, match="^batch 1, sample 0: expected a prompt of fewer than 256") as caught:
        choice(["a", "x" * 400, "b"])
    assert [alone[0], None, alone[1]] == caught.value.results
    assert (caught.value.length, caught.value.limit) == (401, 256)
    state = continuous(choice)(["a", "x" * 400])
    assert str(state.errors[1][0]).startswith("expected a prompt")
    with pytest.raises(ContextLengthError, match="^batch 1, sample 0: "):
        choice(state)
    assert str(state.errors[1][0]).startswith("expected a prompt")
    with pytest.raises(ContextLengthError, match="^batch 0: "):
        choice(["x" * 400, "x" * 500])
    with pytest.raises(ContextLengthError, match="^expected"):
        choice("x" * 400)
    cut = generate.regex(model, "[ab]{40}", sampler=samplers.multinomial(2), force=False)
    with pytest.raises(IncompleteOutput, match="^batch 0, sample 0: expected .* but `max_tokens` cut it to"):
        cut("a", max_tokens=1, rng=0)


def test_a_text_that_the_context_has_cut_does_not_blame_the_limit() -> None:
    model = random_model("gpt2")
    with pytest.raises(IncompleteOutput, match=r"but the context of the model \(256 tokens\) cut it") as caught:
        generate.regex(model, "[ab]{400}", force=False)("x" * 250)
    assert "max_tokens" not in str(caught.value)


def test_the_error_of_a_parser_gets_one_note_with_its_place() -> None:
    model = random_model()

    def parse(text: str) -> str:
        raise ValueError("never")

    generator = dataclasses.replace(generate.choice(model, ["yes"]), parse=parse)
    state = continuous(generator)(["a", "b"])
    for _ in range(2):
        with pytest.raises(ValueError, match="never") as caught:
            generator(state)
        assert caught.value.__notes__ == ["This was batch 0, sample 0 of the call."]


def test_a_tool_is_refused_with_the_call_to_write() -> None:
    arguments = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "confirm", "parameters": arguments}}
    model = random_model()
    with pytest.raises(fsm.SchemaError, match=r"`fsm\.json_schema\(fsm\.tool_schema\(tool\)\)`"):
        generate.json(model, tool)
    assert generate.json(model, fsm.tool_schema(tool), dialect="2020-12")("Confirm:", max_tokens=30)["ok"] in (True, False)


def test_a_generator_warns_where_the_schema_is_given() -> None:
    with pytest.warns(fsm.SchemaWarning, match="#/requried") as caught:
        generate.json(random_model(), {"type": "object", "requried": ["a"]})
    assert [__file__] == [warning.filename for warning in caught]


def test_policies_of_a_generator_steer_every_call_of_it_and_are_pickled_with_it() -> None:
    model = random_model()
    banned = [policies.ban(["a", "e"])]
    for make in (
        lambda **more: generate.text(model, **more),
        lambda **more: generate.regex(model, "[a-f]{6}", **more),
        lambda **more: generate.choice(model, ["abe", "ffd", "dcf"], **more),
        lambda **more: generate.json(model, {"enum": ["abe", "ffd", "dcf"]}, **more),
        lambda **more: generate.cfg(model, "start: /[a-f]{6}/", **more),
        lambda **more: generate.fsm(model, fsm.regex("[a-f]{6}"), **more),
    ):
        steered = make(policies=banned)
        wanted = make()("the name", max_tokens=8, policies=banned) if make()("a", max_tokens=8) else None
        found = steered("the name", max_tokens=8)
        assert found == wanted
        assert not {"a", "e"} & {*found.casefold()}
        assert make(draft="lookup").draft == "lookup"
    assert generate.format(model, bool, policies=[policies.ban("true")])("the name") is False
    with pytest.raises(OptionError, match="policies"):
        generate.text(model, policies=["delve"])  # type: ignore[list-item]


def test_a_stream_that_resumes_takes_a_state_that_was_cut_and_no_seed() -> None:
    write = continuous(generate.regex(random_model(), "[ab]{6}", sampler=samplers.multinomial()))
    cut, whole = write("the", rng=4, max_tokens=2), write("the", rng=4)
    with pytest.raises(OptionError, match=r"no `rng` together with `resume`, got 3: the state continues its own"):
        write.stream(cut, resume=True, rng=3)
    with pytest.raises(ResumeError, match="expected a state whose last piece was cut"):
        write.stream("the", resume=True)
    assert asyncio.run(write.aresume(cut)) == whole
    assert [event.text for event in write.stream(whole, resume=True)] == [whole.generated]
