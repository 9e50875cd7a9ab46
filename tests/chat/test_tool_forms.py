"""Tool calls in the forms of known models: found in chat templates, constrained, and read back by readers of their own."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from enum import Enum
from functools import cache, reduce
from operator import or_
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import fsm
from outlines_cont import Chat, OpenCall, Thinking, generate, samplers
from outlines_cont.chats.call_ids import CallIds
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import FORMS, ArgumentForm, ToolForm, form_of, marked
from outlines_cont.errors import ChatError, OptionError
from outlines_cont.models.tokenizer.special_names import special_names_of
from outlines_cont.policies import Constraint
from outlines_cont.replies import OpenCalls
from tests.chat_models import CALLING, GPT_OSS, chat_model
from tests.examples import examples

Calls = list[tuple[str, dict[str, Any]]]


class Weather(BaseModel):
    """Tell the weather."""

    city: Literal["Paris", "New York"]
    note: str = Field("", max_length=5)
    days: int = Field(1, ge=1, le=9)
    is_long: bool = False


class Stop(BaseModel):
    """End the talk."""


class City(Enum):
    OSLO = "Oslo"


def go(city: City) -> None:
    """Go there."""


TOOLS = [Weather, Stop]


def _json_behind(marks: str) -> Callable[[str], Calls]:
    return lambda text: [(name, json.loads(given)) for name, given in re.findall(marks, text, re.DOTALL)]


def _read_xml(text: str) -> Calls:
    found: Calls = []
    for name, body in re.findall(r"<tool_call>\n<function=(\w+)>\n(.*?)</function>\n</tool_call>", text, re.DOTALL):
        given = dict(re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>\n", body, re.DOTALL))
        found.append((name, {key: value if key in ("city", "note") else json.loads(value) for key, value in given.items()}))
    return found


def _read_python(text: str) -> Calls:
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.List)
    found: Calls = []
    for call in tree.elts:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        found.append((call.func.id, {str(part.arg): ast.literal_eval(part.value) for part in call.keywords}))
    return found


def _read_gemma(text: str) -> Calls:
    found: Calls = []
    for name, body in re.findall(r"<start_function_call>call:(\w+)\{(.*?)\}<end_function_call>", text, re.DOTALL):
        parts = re.findall(r"(\w+):(?:<escape>(.*?)<escape>|([^,]*))", body, re.DOTALL)
        found.append((name, {key: json.loads(other) if other else said for key, said, other in parts}))
    return found


READERS: dict[str, Callable[[str], Calls]] = {
    "mistral-args": _json_behind(r"\[TOOL_CALLS\](\w+)\[ARGS\](\{.*?\})(?=\[TOOL_CALLS\]|$)"),
    "qwen3-coder": _read_xml,
    "pythonic": _read_python,
    "gemma": _read_gemma,
    "harmony": _json_behind(r" to=functions\.(\w+)(?:<\|channel\|>commentary json| <\|constrain\|>json)<\|message\|>(\{.*\})$"),
}


def _chat(form: str, **options: Any) -> Chat:
    if form == "harmony":
        return Chat(chat_model("gpt-oss"), template=GPT_OSS, tools=TOOLS, **options).user("Rain?")
    return Chat(chat_model("tools"), template=CALLING[form], tools=TOOLS, **options).user("Rain?")


def _said(chat: Chat, before: Chat) -> str:
    return str(chat.state)[len(str(before.state)) :]


@pytest.mark.parametrize("form", READERS)
def test_forms_are_found_in_templates(form: str) -> None:
    assert form_of(_chat(form)._format.template) == FORMS[form]


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calls_that_must_be_made_are_read_by_another_reader(form: str, seed: int) -> None:
    chat = _chat(form, rng=seed)
    draw = generate.text(chat.model, sampler=samplers.multinomial())
    called = chat.assistant(draw, tool_choice="required", max_calls=2, max_tokens=250)
    assert called.finish_reason in ("constraint", "stop")
    calls = [(call.name, json.loads(json.dumps(call.arguments))) for call in called.tool_calls]
    written = [(one["function"]["name"], one["function"]["arguments"]) for one in called.messages[-1]["tool_calls"]]
    assert READERS[form](_said(called, chat)) == written
    assert 1 <= len(calls) <= 2
    for call in called.tool_calls:
        assert isinstance(call.run(), BaseModel)
        assert call.name == "Stop" or call.arguments["city"] in ("Paris", "New York")
    # The template writes calls of its form as the model has, and the next turn feeds only what is new.
    answered = called
    for call in called.tool_calls:
        answered = answered.tool(call.name)
    own, next_ids = ([*one.state.rows[0][0].token_ids] for one in (called, answered))
    is_form_of_template = _said(called, chat).startswith(FORMS[form].before)
    assert is_form_of_template or form == "harmony"
    assert (next_ids[: len(own)] == own) is is_form_of_template


@pytest.mark.parametrize("form", READERS)
def test_a_stream_reports_the_same_calls(form: str) -> None:
    chat = _chat(form, rng=5)
    draw = generate.text(chat.model, sampler=samplers.multinomial())
    called = chat.assistant(draw, tool_choice="required", max_calls=2, max_tokens=250)
    stream = chat.stream(draw, tool_choice="required", max_calls=2, max_tokens=250)
    events = [*stream]
    assert stream.chat.messages == called.messages
    whole = [event.call for event in events if event.call is not None and event.call.is_whole]
    assert [(call.name, call.id, call.arguments) for call in called.tool_calls] == [(c.name, c.id, c.arguments) for c in whole]
    assert "".join(event.text for event in events) == ""
    texts: dict[int, str] = {}
    for event in events:
        if event.call is not None:
            texts[event.call.index] = texts.get(event.call.index, "") + event.call.text
    written = [one["function"]["arguments"] for one in called.messages[-1]["tool_calls"]]
    assert [json.loads(text) for text in texts.values()] == written


@pytest.mark.parametrize("form", ["mistral-args", "qwen3-coder", "gemma"])
def test_text_may_come_before_calls(form: str) -> None:
    chat = _chat(form)
    marker = FORMS[form].marker(None)
    names = special_names_of(chat.model.tokenizer)
    ends = {chat.model.tokenizer.special_tokens[i] for i in chat.model.eos_token_ids}
    inside = {*chat.model.tokenizer.special_tokens.values()} - ends
    some = reduce(or_, [fsm.regex(r"[\s\S]"), *(fsm.special(name) for name in inside)])
    begun = Constraint.of_model(chat.model, fsm.choice(["So: "]) + marked(marker, names) + some.repeat())
    calling = generate.text(chat.model, policies=[begun])
    called = chat.assistant(calling, tools=TOOLS, max_calls=1, max_tokens=250)
    assert called.messages[-1]["content"] == "So:"
    assert len(called.tool_calls) == 1
    assert len(READERS[form](_said(called, chat))) == 1


def test_the_choice_of_tools() -> None:
    chat = _chat("qwen3-coder")
    assert [call.name for call in chat.assistant(tool_choice="Stop", max_calls=1, max_tokens=99).tool_calls] == ["Stop"]
    assert chat.assistant(tool_choice="none", max_tokens=3).tool_calls == ()
    for choice in ("stop", "all", 3):
        with pytest.raises(OptionError, match="tool_choice"):
            chat.assistant(tool_choice=choice)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="max_calls"):
        chat.assistant(max_calls=0)
    with pytest.raises(OptionError, match="tool_choice"):
        Chat(chat_model("tools"), template=CALLING["gemma"]).user("Hi").assistant(tool_choice="required")


@pytest.mark.parametrize("first", [1, 5, 12])
@pytest.mark.parametrize("form", READERS)
def test_calls_that_were_cut_are_resumed(form: str, first: int) -> None:
    chat = _chat(form)
    options: dict[str, Any] = {"tool_choice": "Weather", "max_calls": 1}
    text = generate.text(chat.model)
    whole = chat.assistant(text, **options, max_tokens=200)
    cut = chat.assistant(text, **options, max_tokens=first)
    assert (cut.finish_reason, cut.tool_calls) == ("length", ())
    resumed = cut.resume(text, max_tokens=200)
    assert resumed == whole == cut.resume(text, **options, max_tokens=200)
    assert resumed.tool_calls[0].arguments == whole.tool_calls[0].arguments


def test_thoughts_come_before_calls_that_must_be_made() -> None:
    chat = _chat("gemma", rng=1)
    thinking = Thinking(begin="[T]", end="[/T]", max_tokens=5)
    called = chat.assistant(generate.text(chat.model), tool_choice="Weather", max_calls=1, thinking=thinking, max_tokens=200)
    assert called.tool_calls[0].name == "Weather"
    assert called.thoughts


_VALUES = st.fixed_dictionaries(
    {"city": st.sampled_from(["Paris", "New York"])},
    optional={"note": st.text(st.sampled_from("a<>/\n\"'[],(){}=:é "), max_size=5), "days": st.integers(1, 9), "is_long": st.booleans()},
)
_NAMES = st.sampled_from(sorted(set(FORMS) - {"harmony"}))


@settings(max_examples=examples(60))
@given(_NAMES, st.lists(_VALUES, min_size=1, max_size=3))
def test_what_is_written_is_in_the_language_and_is_read(form: str, values: list[dict[str, Any]]) -> None:
    tools = [Tool.of(Weather), Tool.of(Stop)]
    values = values[: 3 if FORMS[form].separator is not None else 1]
    calls: Calls = [("Weather", {key: one[key] for key in ("city", "note", "days", "is_long") if key in one}) for one in values]
    text = FORMS[form].written(calls)
    assert FORMS[form].calls(text, tools) == calls
    assert form not in READERS or READERS[form](text) == calls or form == "gemma"  # whose reader takes no comma in braces
    assert FORMS[form].expression(tools, "").accepts(text)
    assert not FORMS[form].expression(tools, "", max_calls=len(calls) - 1 or 1).accepts(FORMS[form].written([*calls, calls[0]]))
    for end in range(len(text)):
        whole = FORMS[form].calls(text[:end], tools)
        assert whole == calls[: len(whole)]


@cache
def _tools() -> list[Tool]:
    return [Tool.of(Weather), Tool.of(Stop)]


@settings(max_examples=examples(30))
@given(_NAMES, st.lists(_VALUES, min_size=1, max_size=2), st.randoms(use_true_random=False))
def test_calls_that_arrive_in_parts_grow_as_json(form: str, values: list[dict[str, Any]], random: Any) -> None:
    tools = _tools()
    values = values[: 2 if FORMS[form].separator is not None else 1]
    calls: Calls = [("Weather", {key: one[key] for key in ("city", "note", "days", "is_long") if key in one}) for one in values]
    text, parser, parts, at = FORMS[form].written(calls), OpenCalls(FORMS[form], tools, CallIds((7,)).of, ""), list[OpenCall](), 0
    while at < len(text):
        size = random.randint(1, 5)
        parts += parser.push(text[at : at + size])
        at += size
    texts = {part.index: "" for part in parts}
    for part in parts:
        texts[part.index] += part.text
        known = calls[part.index][1]
        for key, value in part.arguments.items():  # the others are defaults
            assert key not in known or known[key] == value or (isinstance(value, str) and known[key].startswith(value))
    assert [json.loads(whole) for whole in texts.values()] == [given for _, given in calls]
    assert {(part.name, part.id) for part in parts} == {("Weather", CallIds((7,)).of(index)) for index in range(len(calls))}
    assert [part.index for part in parts if part.is_whole] == [*range(len(calls))]


def test_a_text_as_it_is_grows_in_a_stream() -> None:
    """A text that is written as it is is shown as it comes, but for what may be the mark that ends it."""
    tool = Tool.of_text("note", "Keep it.", fsm.regex(r"[^x]*"))
    for form, mark in (("qwen3-coder", "\n</parameter>\n"), ("gemma", "<escape>")):
        text = FORMS[form].written([("note", {"input": 'a "b" < c'})])
        parser = OpenCalls(FORMS[form], [tool], str, "")
        shown = [part.arguments.get("input", "") for letter in text for part in parser.push(letter)]
        assert {'a "b" < c'[:size] for size in (1, 3, 5, 6)} <= {*shown}
        assert not any(part in one for one in shown for part in (mark, mark[:3]))


@pytest.mark.parametrize("value", ["New Yorc", "", "Paris "])
@pytest.mark.parametrize("form", READERS)
def test_arguments_are_strict(form: str, value: str) -> None:
    tools = [Tool.of(Weather)]
    expression = FORMS[form].expression(tools, "")
    assert expression.accepts(FORMS[form].written([("Weather", {"city": "Paris"})]))
    assert not expression.accepts(FORMS[form].written([("Weather", {"city": value})]))
    assert not expression.accepts(FORMS[form].written([("Weather", {"days": 1})]))
    assert not expression.accepts(FORMS[form].written([("Weather", {"city": "Paris", "days": 10})]))
    assert not expression.accepts(FORMS[form].written([("Weather", {"city": "Paris", "other": 1})]))
    assert not expression.accepts(FORMS[form].written([("Wetter", {"city": "Paris"})]))


def test_a_reference_to_an_enum_is_written_as_a_text() -> None:
    tool = Tool.of(go)
    text = FORMS["qwen3-coder"].written([("go", {"city": "Oslo"})])
    assert FORMS["qwen3-coder"].expression([tool], "").accepts(text)
    assert FORMS["qwen3-coder"].calls(text, [tool]) == [("go", {"city": "Oslo"})]


@pytest.mark.parametrize("schema", [{"minProperties": 1}, {"properties": {"x": {"type": "string", "format": "date"}}}])
def test_what_a_form_without_json_cannot_keep_is_refused(schema: dict[str, Any]) -> None:
    tool = Tool.of({"name": "f", "description": "", "inputSchema": {"type": "object", **schema}})
    with pytest.raises(ChatError, match=r"hermes|Leave"):
        FORMS["qwen3-coder"].expression([tool], "")


def test_users_add_a_form_of_their_own() -> None:
    model = chat_model("tools")
    form = ToolForm("<call ", ">", "</call>", "</call><call ", arguments=ArgumentForm("<", "=", ">", quote="'"))
    chat = Chat(model, template=CALLING["gemma"], tools=TOOLS, tool_form=form, rng=2).user("Rain?")
    called = chat.assistant(tool_choice="Weather", max_calls=1, max_tokens=200)
    assert re.fullmatch(r"<call Weather><city='(Paris|New York)'>(<\w+=[^>]*>)*</call>", _said(called, chat), re.DOTALL)
    assert called.tool_calls[0].arguments["city"] in ("Paris", "New York")
