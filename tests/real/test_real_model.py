"""What users do, on a real pretrained chat model: texts valid, ids those of a fresh run, nothing fed twice.

The model is made by `python -m scripts.real_model FOLDER`, and named by `OUTLINES_CONT_REAL_MODEL=FOLDER`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

import fsm
from outlines_cont import Chat, SequenceState, Template, Thinking, adapters, continuous, generate, models, pipelines, policies, samplers
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.demo import DATE, Record
from outlines_cont.models import HuggingFaceModel
from outlines_cont.state.row import GENERATED
from tests.oracle import assert_close

FOLDER = os.environ.get("OUTLINES_CONT_REAL_MODEL", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("real"),
    pytest.mark.skipif(
        not Path(FOLDER or "?").is_dir(), reason="OUTLINES_CONT_REAL_MODEL names no folder; `python -m scripts.real_model FOLDER` makes one"
    ),
]

MESSAGE = "Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14."


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    customer: str = Field(max_length=30)
    item: str = Field(max_length=30)
    quantity: int = Field(ge=1, le=999)
    city: Literal["Lisbon", "Porto", "Oslo"]


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    """In float32: the logits of one token after another and of many at once differ by rounding only."""
    return models.transformers(FOLDER, dtype="float32")


@pytest.fixture(autouse=True)
def nothing_is_fed_twice(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test makes the model compute a token again, but where it says so."""
    model = request.getfixturevalue("model")
    model.prefix_cache.clear()
    with model.meter() as meter:
        yield
    if request.node.get_closest_marker("feeds_again") is None:
        assert meter.recomputed_tokens == 0
    assert meter.fed_tokens > 0


def assert_fresh(state: SequenceState, model: HuggingFaceModel) -> None:
    """Generated tokens have the log-probabilities, and the next one the logits, of one forward over all ids."""
    rows = [row for group in state.rows for row in group]
    for row, last in zip(rows, state.logits.flatten(0, 1), strict=True):
        with torch.no_grad():
            fresh = model.hugging_face(input_ids=torch.tensor([row.token_ids]), use_cache=False).logits[0]
        assert_close(fresh[-1], last, 1e-3)
        scores = fresh.log_softmax(-1)
        for at, kind in enumerate(row.kinds):
            if kind == GENERATED[0]:
                assert float(scores[at - 1, row.token_ids[at]]) == pytest.approx(row.logprobs[at], abs=1e-3)


def ids_of(state: SequenceState) -> list[tuple[int, ...]]:
    return [row.token_ids for group in state.rows for row in group]


@pytest.mark.feeds_again
def test_a_chain_of_pieces_is_that_of_a_fresh_run(model: HuggingFaceModel) -> None:
    steps: list[tuple[str, Any, dict[str, Any]]] = [
        (f"Message: {MESSAGE}\nKind: ", generate.choice(model, ["order", "invoice", "complaint"]), {}),
        ("\nRecord: ", generate.json(model, Order), {}),
        ("\nDue: ", generate.regex(model, r"\d{4}-\d{2}-\d{2}"), {}),
        ("\nSummary: ", generate.text(model), {"max_tokens": 8}),
    ]
    state: Any = ""
    for text, generator, options in steps:
        before = state + text
        state = continuous(generator)(before, **options)
        if isinstance(before, SequenceState):
            assert ids_of(continuous(generator)(before.detach_cache(), **options)) == ids_of(state)
    assert Order.model_validate_json(str(state).split("Record: ")[1].split("\n")[0]).quantity >= 1
    assert re.search(r"Due: \d{4}-\d{2}-\d{2}\nSummary: ", str(state))
    assert_fresh(state, model)


def test_slices_and_sums_go_on_as_their_texts(model: HuggingFaceModel) -> None:
    write = continuous(generate.text(model))
    state = write("The capital of France is", max_tokens=12)
    text = str(state)
    half = state[: len(text) // 2]
    assert str(half) == text[: len(text) // 2]
    assert_fresh(write(half, max_tokens=4), model)
    joined = half + " and the sea" + write("Once upon a time", max_tokens=4)
    assert str(joined).startswith(str(half) + " and the sea")


def test_forks_differ_and_fit_their_pattern(model: HuggingFaceModel) -> None:
    prompt = continuous(generate.text(model))("A list of three animals: cat", stop_at=",")
    draw = continuous(generate.regex(model, "( [a-z]{2,8},){2}", sampler=samplers.multinomial(top_p=0.9)))
    forks = draw(prompt.fork(4), rng=3)
    assert len(set(ids_of(forks))) > 1
    assert all(re.fullmatch("( [a-z]{2,8},){2}", text) for text in forks.generated[0])
    assert_fresh(forks, model)


def test_a_chat_of_three_turns_feeds_only_what_is_new(model: HuggingFaceModel) -> None:
    chat = Chat(model).system("You write records.").user(MESSAGE).assistant(generate.json(model, Order))
    assert isinstance(chat.value, Order)
    chat = chat.user("Is it an order? Answer yes or no.").assistant(generate.choice(model, ["yes", "no"]))
    chat = chat.user("Say thanks.").assistant(max_tokens=10)
    assert [message["role"] for message in chat] == ["system", *["user", "assistant"] * 3]
    assert_fresh(chat.state, model)


def test_thoughts_between_letters_come_before_a_record(model: HuggingFaceModel) -> None:
    thinking = Thinking(begin="Thoughts: ", end="\nRecord: ", max_tokens=24)
    prompt, order = f"Message: {MESSAGE}\n", generate.json(model, Order)
    state = continuous(order)(prompt, thinking=thinking)
    assert state.thoughts
    assert str(state).startswith(f"{prompt}Thoughts: {state.thoughts}")
    assert isinstance(state.value, Order)
    assert_fresh(state, model)


def test_a_chat_of_three_turns_with_thoughts(model: HuggingFaceModel) -> None:
    thinking = Thinking(begin="<think>", end="</think>", max_tokens=12)
    chat = Chat(model).user(MESSAGE).assistant(generate.json(model, Order, show_schema=True), thinking=thinking)
    assert isinstance(chat.value, Order)
    assert "customer: string" in chat.messages[0]["content"]
    for question in ("Is it an order?", "Are you sure?"):
        chat = chat.user(question).assistant(generate.choice(model, ["yes", "no"]), thinking=thinking)
        assert chat.thoughts == str(chat.state.thoughts).strip()
        assert chat.messages[-1]["content"] == chat.value
    assert str(chat.state).count("<think>") == 1  # the template writes the content of earlier replies
    assert_fresh(chat.state, model)


@pytest.mark.parametrize("form", ["hermes", "qwen3-coder", "pythonic"])
def test_a_call_that_must_be_made_is_in_the_form_of_a_model(model: HuggingFaceModel, form: str) -> None:
    def weather(city: Literal["Paris", "Oslo"], days: Literal[1, 2, 3] = 1) -> str:
        """Tell the weather of a city."""
        return f"Rain in {city} for {days}."

    chat = Chat(model, tools=[weather], tool_form=form).user("Do I need an umbrella in Oslo?")
    chat = chat.assistant(tool_choice="weather", max_calls=1, max_tokens=60)
    (call,) = chat.tool_calls
    assert call.run().startswith(f"Rain in {call.arguments['city']}")
    assert_fresh(chat.state, model)


def test_a_tool_is_called_with_arguments_that_fit(model: HuggingFaceModel) -> None:
    def weather(city: Literal["Paris", "Oslo"], days: Literal[1, 2, 3] = 1) -> str:
        """Tell the weather of a city."""
        return f"Rain in {city}."

    chat = Chat(model, tools=[weather]).user("Do I need an umbrella in Oslo?")
    chat = chat.assistant(generate.fsm(model, "<tool_call>"), tools=[weather], max_tokens=60)
    (call,) = chat.tool_calls
    assert call.name == "weather"
    assert call.run() == f"Rain in {call.arguments['city']}."
    chat = chat.tool(call.run()).assistant(max_tokens=6)
    assert_fresh(chat.state, model)


def test_a_stream_is_the_text_of_the_call(model: HuggingFaceModel) -> None:
    generator = generate.json(model, Order)
    prompt = f"Message: {MESSAGE}\nRecord: "
    deltas = [*generator.stream(prompt)]
    assert len(deltas) > 5
    records = [*generator.stream(prompt, partial=True)]
    assert records[-1] == Order.model_validate_json("".join(deltas))


def test_a_healed_prompt_goes_on_with_whole_tokens(model: HuggingFaceModel) -> None:
    prompt = "You find the page at http:"
    healed = continuous(generate.text(model))(prompt, max_tokens=3, heal=True)
    assert str(healed).startswith(prompt + "//")
    assert_fresh(healed, model)


def test_a_banned_phrase_is_not_written(model: HuggingFaceModel) -> None:
    prompt = "The capital of France is"
    plain = continuous(generate.text(model))(prompt, max_tokens=8)
    assert "Paris" in str(plain)
    banned = continuous(generate.text(model))(prompt, max_tokens=8, policies=[policies.ban("paris")])
    assert "paris" not in str(banned).lower()
    assert int(banned.retries) >= 1
    assert_fresh(banned, model)


@pytest.mark.parametrize(("question", "pattern"), [("Name a colour.", "[A-Za-z ]+"), ("What is the capital of Italy?", "[A-Za-z ,]+")])
def test_a_free_end_leaves_what_the_model_writes_without_a_constraint(model: HuggingFaceModel, question: str, pattern: str) -> None:
    chat = Chat(model).user(question)
    free = chat.assistant(max_tokens=24).value
    written = re.match(pattern, free)
    assert written is not None
    assert written[0] != free
    replied = chat.assistant(generate.regex(model, pattern, end="free"), max_tokens=24)
    assert (replied.value, replied.finish_reason) == (written[0], "stop")
    assert_fresh(replied.state, model)


def test_a_free_end_does_not_drive_a_number_on(model: HuggingFaceModel) -> None:
    questions = ["What is 2+2? Answer with a number.", "How many days has a week? Answer with a number.", "What is half of 7?"]
    write = generate.regex(model, "[0-9]+", end="free")
    replies = Chat.replies([Chat(model).user(question) for question in questions], write, max_tokens=24)
    assert [(len(reply.value), reply.finish_reason) for reply in replies] == [(1, "stop")] * 3
    driven = Chat(model).user(questions[1]).assistant(generate.regex(model, "[0-9]+", end="eos"), max_tokens=24)
    assert driven.finish_reason == "length"


@pytest.mark.feeds_again
def test_the_values_of_a_field_have_probabilities(model: HuggingFaceModel) -> None:
    state = continuous(generate.json(model, Order))(f"Message: {MESSAGE}\nRecord: ", max_tokens=120)
    found = state.alternatives("city")
    assert set(found) == {"Lisbon", "Porto", "Oslo"}
    assert (found.best, sum(found.values())) == ("Porto", pytest.approx(1))


def test_options_have_the_probabilities_of_plain_forwards(model: HuggingFaceModel) -> None:
    options = ["order", "invoice", "complaint"]
    prompt = f"Message: {MESSAGE}\nThis message is an"
    found = generate.choice(model, [f" {option}" for option in options]).probabilities(prompt)
    assert sum(found.values()) == pytest.approx(1)
    ids = model.tokenizer.encode(prompt, add_special_tokens=True)
    for option in found:
        spelled = model.tokenizer.encode_inside(option, ids)
        with torch.no_grad():
            logs = model.hugging_face(input_ids=torch.tensor([[*ids, *spelled]]), use_cache=False).logits[0].log_softmax(-1)
        own = sum(float(logs[len(ids) - 1 + at, token_id]) for at, token_id in enumerate(spelled))
        assert found.log_shares[found.options.index(option)] == pytest.approx(own, abs=1e-3)
    assert found.best == " order"


def test_a_tag_between_special_tokens_is_written(model: HuggingFaceModel) -> None:
    mark = fsm.special("<file_sep>")
    language = fsm.tag(mark, fsm.regex("[a-z]{2,12}").named("city"), mark)
    state = continuous(generate.fsm(model, language))(f"{MESSAGE} The city is ", max_tokens=20)
    assert re.fullmatch("<file_sep>[a-z]{2,12}<file_sep>", state.generated)
    assert state.value == {"city": state.generated.removeprefix("<file_sep>").removesuffix("<file_sep>")}
    assert_fresh(state, model)


GRAMMAR = r"""
start: "Items: " item ("; " item){0,2} "\n" record
item: NUMBER " " NAME
record: %json {"type": "object", "properties": {"urgent": {"type": "boolean"}}, "required": ["urgent"], "additionalProperties": false}
NUMBER: /[1-9][0-9]{0,2}/
NAME: /[a-z ]{3,20}/ & ~/.*  .*/
"""


@pytest.mark.parametrize("read", [fsm.grammar, fsm.gbnf])
def test_texts_of_grammars_in_the_notations_of_others(model: HuggingFaceModel, read: Any) -> None:
    gbnf = 'root ::= "Items: " [1-9] [0-9]? " " name\nname ::= [a-z] [a-z ]{2,15}'
    language = read(GRAMMAR if read is fsm.grammar else gbnf)
    state = continuous(generate.fsm(model, language))(f"Message: {MESSAGE}\n", max_tokens=120)
    assert language.accepts(state.generated)
    assert_fresh(state, model)


def test_a_template_captures_what_fits(model: HuggingFaceModel) -> None:
    template = Template("Message: {{ text }}\nKind: {{ choice('kind', ['order', 'invoice']) }}\nRecord: {{ json('record', schema) }}")
    result = template.run(model, text=MESSAGE, schema=Order.model_json_schema()).check()
    assert result.captures["kind"] in ("order", "invoice")
    assert Order.model_validate(result.captures["record"]).quantity >= 1
    assert_fresh(result.state, model)


def test_generate_of_transformers_takes_our_constraint(model: HuggingFaceModel) -> None:
    tokenizer = model.tokenizer.hugging_face
    inputs = tokenizer(f"Message: {MESSAGE}\nRecord: ", return_tensors="pt")
    processor = adapters.logits_processor(Order, tokenizer)
    out = model.hugging_face.generate(**inputs, logits_processor=[processor.of(inputs)], max_new_tokens=90, do_sample=False)
    written = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    ours = generate.json(model, Order, force=False)(f"Message: {MESSAGE}\nRecord: ")
    assert Order.model_validate_json(written) == ours


@pytest.mark.feeds_again
def test_the_demo_runs_on_it(model: HuggingFaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.cli.demo.read_messages", lambda: [MESSAGE])
    monkeypatch.setattr("outlines_cont.cli.demo.load_model", lambda name, *_: model if name == FOLDER else None)
    output = tmp_path / "records.jsonl"
    result = CliRunner().invoke(app, ["demo", "--model", FOLDER, "--output", str(output)])
    assert result.exit_code == 0, result.output
    (row,) = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert Record.model_validate(row["record"]).model_dump() == row["record"]
    assert re.fullmatch(DATE, row["due"])


def test_the_tutorial_runs_on_it(
    model: HuggingFaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.setattr(models, "tiny", lambda: model)
    found = runpy.run_path(str(script))
    assert len(blocks) >= 8
    assert found["first"].value in ("order", "invoice", "complaint")
    assert found["state"].value.city == "Porto"
    assert "token 81 (b'a') is not allowed: expected one of '0', '1'" in capsys.readouterr().out


def test_records_of_many_messages(model: HuggingFaceModel, tmp_path: Path) -> None:
    messages = [MESSAGE, "This is Ana Novak. We need 3 office chairs in Oslo."]
    source, records = tmp_path / "messages.txt", tmp_path / "records.jsonl"
    source.write_text("\n".join(messages), encoding="utf-8")
    extractor = pipelines.Extractor(model, Order, "Message: {{ text }}\nRecord: ")
    pipelines.run(source, extractor, records)
    found = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    alone = generate.json(model, Order)
    for message, line in zip(messages, found, strict=True):
        assert Order.model_validate(line["record"]) == alone(f"Message: {message}\nRecord: ")
