"""Tools in a conversation: calls in the form of the model's template, with arguments that fit the type hints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from transformers import MistralConfig, MistralForCausalLM

from outlines_cont import Chat, OpenCall, StreamEvent, continuous, generate, models, samplers
from outlines_cont.chat import _reply_maker
from outlines_cont.chats.message import readable
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import GENERIC, HERMES, LLAMA3, MISTRAL, ToolForm, form_of
from outlines_cont.errors import ChatError, OptionError
from outlines_cont.replies import OpenCalls, ReplyEvents
from tests.chat_models import PLAIN, chat_model
from tests.tokenizer_kinds import tokenizer_of

_FORMS = {"Qwen3": HERMES, "Llama 3": LLAMA3, "Mistral": MISTRAL, "plain": GENERIC}


def get_weather(city: Literal["Paris", "Oslo"], days: int = 1) -> str:
    """Tell the weather of a city.

    More about it.

    Args:
        city: Which one.
        days: How many days ahead.
    """
    return f"{city}: rain for {days} days"


class Stop(BaseModel):
    """End the talk."""

    reason: Literal["done", "late"]


def _caller(kind: str) -> Any:
    """A generator that would write what begins a call."""
    model, form = chat_model(kind), _FORMS[kind]
    marker = form.before if kind in ("Llama 3", "plain") else form.before.split("\n")[0].split("[{")[0]
    if kind in ("Llama 3", "plain"):
        return generate.fsm(model, marker + " more")
    token_id = model.tokenizer.hugging_face.convert_tokens_to_ids(marker)  # type: ignore[attr-defined]
    return generate.text(model, sampler=samplers.greedy(logit_bias={token_id: 100.0}))


@pytest.mark.parametrize("kind", _FORMS)
def test_the_form_of_calls_is_read_off_the_template(kind: str) -> None:
    assert _FORMS[kind] == form_of(Chat(chat_model(kind))._format.template)


def test_the_real_form_of_mistral_is_read_off_its_tokenizer() -> None:
    model: Any = SimpleNamespace(kv_store=None, tokenizer=tokenizer_of("tekken 131k in mistral-common"))
    assert form_of(Chat(model)._format.template) == MISTRAL


@pytest.mark.parametrize("kind", _FORMS)
def test_a_call_is_written_answered_and_gone_on_with(kind: str) -> None:
    model = chat_model(kind)
    form = replace(MISTRAL, separator=None) if kind == "Mistral" else None  # else it calls for ever
    chat = Chat(model, tool_form=form).user("Rain?").assistant(_caller(kind), tools=[get_weather], max_tokens=400)
    (call,) = chat.tool_calls[:1]
    assert call.name == "get_weather"
    assert set(call.arguments) <= {"city", "days"}
    assert call.arguments["city"] in ("Paris", "Oslo")
    last = chat.messages[-1]
    assert (last["role"], last["content"], chat.value) == ("assistant", "", None)
    assert last["tool_calls"][0]["function"]["arguments"] == json.loads(json.dumps(call.arguments))
    assert len(last["tool_calls"][0]["id"]) == 9
    with pytest.raises(ChatError, match="chat.tool"):
        chat.assistant(generate.text(model))
    written = list(chat.state.rows[0][0].token_ids)
    for one in chat.tool_calls:
        chat = chat.tool(one.run() if kind != "Mistral" else {"told": one.run()})
    assert chat.tool_calls == ()
    asked = list(chat.state.rows[0][0].token_ids)
    if kind != "Mistral":  # whose template adds an id to the call
        assert written == asked[: len(written)]
    else:
        assert written[:-3] == asked[: len(written) - 3]
    with model.meter() as meter:
        chat = chat.assistant(generate.choice(model, ["It rains.", "It does not."], exact=False))  # else both texts are fed
    assert chat.value in ("It rains.", "It does not.")
    assert meter.fed_tokens <= len(chat.state.rows[0][0].token_ids) - len(written) + 4
    if kind != "plain":
        tokenizer: Any = model.tokenizer.hugging_face  # type: ignore[attr-defined]
        tools = [Tool.of(get_weather).message]
        ids = tokenizer.apply_chat_template(chat.messages[:-1], tools=tools, add_generation_prompt=True, return_dict=False)
        assert ids[-8:] == asked[-8:]
        assert tokenizer.decode(ids) == tokenizer.decode(asked)


@pytest.mark.parametrize("kind", ["Qwen3", "Llama 3"])
def test_text_stays_text(kind: str) -> None:
    model = chat_model(kind)
    before = _FORMS[kind].before
    chat = Chat(model, tools=[get_weather, Stop]).user("Rain?")
    first = model.tokenizer.encode_special(before)[0]
    writer = generate.choice(model, ["No."], sampler=samplers.greedy(logit_bias={first: -100.0}))
    said = chat.assistant(writer, tools=[get_weather, Stop])
    assert (said.value, said.tool_calls) == ("No.", ())
    assert said.user("a").messages[1] == {"role": "assistant", "content": "No."}
    free = chat.assistant(max_tokens=5)
    assert free.messages[-1]["content"] == free.value
    assert chat.assistant(max_tokens=5) == free
    if kind == "Llama 3":
        inside = generate.fsm(model, f"It is {before} or so.")
        whole = chat.assistant(inside, tools=[get_weather], max_tokens=60)
        assert whole.tool_calls == ()
        assert whole.messages[-1]["content"].startswith(f"It is {before}")


def test_a_call_that_is_cut_is_text() -> None:
    chat = Chat(chat_model("Qwen3")).user("Rain?").assistant(_caller("Qwen3"), tools=[get_weather], max_tokens=9)
    assert chat.finish_reason == "length"
    assert chat.tool_calls == ()
    assert chat.messages[-1]["content"].startswith("<tool_call>")
    chat = Chat(chat_model("Qwen3")).user("Rain?").assistant(_caller("Qwen3"), tools=[get_weather], max_tokens=1)
    assert (chat.finish_reason, chat.messages[-1]["content"]) == ("length", "<tool_call>")


def test_a_reply_that_is_cut_keeps_its_whole_calls() -> None:
    calls = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Oslo"})]
    for form in (HERMES, MISTRAL):
        text = form.written(calls)
        first = len(form.written(calls[:1]).removesuffix(form.after))
        second = len(text.removesuffix(form.after))
        for length in range(len(text) + 1):
            assert form.calls(text[:length]) == calls[: (length >= first) + (length >= second)]
    model = chat_model("Qwen3")
    twice = Chat(model).user("Rain?")
    written = HERMES.written(calls[:1] * 2)
    token_ids = model.tokenizer.encode_inside(written)
    chat = twice._copy_with(format=twice._format.with_tools([get_weather]))
    state = continuous(generate.fsm(model, written))(chat.state, max_tokens=len(token_ids) * 3 // 4)
    cut = chat._replied(_reply_maker(chat, generate.text(model)), state)
    assert (cut.finish_reason, [call.name for call in cut.tool_calls]) == ("length", ["get_weather"])
    assert cut.tool(cut.tool_calls[0].run()).tool_calls == ()


def test_free_text_calls_where_the_conversation_has_tools() -> None:
    model = chat_model("Qwen3")
    chat = Chat(model, tools=[get_weather]).user("Rain?")
    (call,) = chat.assistant(_caller("Qwen3"), max_tokens=200).tool_calls
    assert call.name == "get_weather"
    assert chat.assistant(generate.choice(model, ["No."])).value == "No."
    with pytest.raises(OptionError, match="no `retract` in a reply that may call"):
        chat.stream(retract=True)
    assert "".join(event.text for event in chat.stream(generate.choice(model, ["No."]))) == "No."


def _told(events: list[StreamEvent]) -> list[tuple[str, dict[str, Any], str]]:
    """The calls that events tell of: the first event of each says the name, the last has all arguments."""
    calls: dict[int, list[OpenCall]] = {}
    for event in events:
        if event.call is not None:
            calls.setdefault(event.call.index, []).append(event.call)
    found = []
    for index, parts in sorted(calls.items()):
        assert {(index, parts[0].id, parts[0].name)} == {(part.index, part.id, part.name) for part in parts}
        assert [False] * (len(parts) - 1) == [part.is_whole for part in parts[:-1]]
        text = "".join(part.text for part in parts)
        if parts[-1].is_whole:
            given = Tool.of(get_weather).values(json.loads(text))
            assert {key: given[key] for key in parts[-1].arguments} == parts[-1].arguments
            found.append((parts[0].name, parts[-1].arguments, parts[0].id))
    return found


@pytest.mark.parametrize("kind", _FORMS)
def test_a_stream_tells_of_calls_as_they_are_written(kind: str) -> None:
    form = replace(MISTRAL, separator=None) if kind == "Mistral" else None
    asked = Chat(chat_model(kind), tool_form=form, tools=[get_weather], rng=1).user("Rain?")
    for limit in (90, 15, 1):
        called = asked.assistant(_caller(kind), tools=[get_weather], max_tokens=limit)
        stream = asked.stream(_caller(kind), tools=[get_weather], max_tokens=limit)
        events = list(stream)
        assert called == stream.chat
        assert list(called.state.rows[0][0].token_ids) == list(stream.chat.state.rows[0][0].token_ids)
        assert called.messages[-1]["content"].startswith("".join(event.text for event in events).rstrip())
        told = _told(events)
        assert [(call.name, call.id) for call in called.tool_calls] == [(name, id) for name, _, id in told]
        if called.tool_calls:
            assert called.tool_calls[0].arguments.items() >= told[0][1].items()
            firsts = [event.call for event in events if event.call is not None]
            assert len(firsts) > 3  # they grow
            assert firsts[0].arguments == {}
        asked_length = len(asked.state.rows[0][0].token_ids)
        assert tuple(called.state.rows[0][0].token_ids[asked_length:]) == tuple(i for event in events for i in event.token_ids)
        assert [called.finish_reason] == [event.finish_reason for event in events if event.finish_reason]


@pytest.mark.parametrize("kind", _FORMS)
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_call_that_was_cut_goes_on_as_if_it_had_not_been(kind: str, is_asked: bool) -> None:
    form = replace(MISTRAL, separator=None) if kind == "Mistral" else None
    caller = _caller(kind)
    chat = Chat(chat_model(kind), tool_form=form, tools=[get_weather], rng=1).user("Rain?")
    tools = [get_weather] if is_asked or kind in ("Llama 3", "plain") else None
    whole = chat.assistant(caller, tools=tools, max_tokens=30)
    written = len(whole.state.rows[0][0].token_ids) - len(chat.state.rows[0][0].token_ids)
    for first in (1, 4, written - 1):
        cut = chat.assistant(caller, tools=tools, max_tokens=first)
        assert cut.finish_reason == "length"
        if cut.tool_calls:
            continue
        gone_on = cut.resume(caller, tools=tools, max_tokens=30 - first)
        assert gone_on == whole == cut.resume(caller, max_tokens=30 - first)
        assert list(whole.state.rows[0][0].token_ids) == list(gone_on.state.rows[0][0].token_ids)
        assert [call.arguments for call in whole.tool_calls] == [call.arguments for call in gone_on.tool_calls]


def test_a_stream_of_text_is_that_of_the_reply_where_no_call_comes() -> None:
    model = chat_model("Llama 3")
    before = LLAMA3.before
    inside = generate.fsm(model, f"It is {before} or {before[:4]}so.")
    chat = Chat(model, tools=[get_weather]).user("Rain?")
    for text in (f"It is {before} or {before[:4]}so.", before[:5], "No."):
        writer = generate.fsm(model, text)
        stream = chat.stream(writer, tools=[get_weather], max_tokens=80)
        events = list(stream)
        assert text == "".join(event.text for event in events) == stream.chat.messages[-1]["content"]
        assert (stream.chat == chat.assistant(writer, tools=[get_weather], max_tokens=80), stream.chat.tool_calls) == (True, ())
        assert [event.call for event in events if event.call is not None] == []
    left = chat.stream(inside, tools=[get_weather], max_tokens=80)
    for event in left:
        if event.text:
            break
    assert left.chat.messages[-1]["content"].startswith("I")
    assert list(left) == []


@pytest.mark.parametrize("form", [HERMES, LLAMA3, MISTRAL])
def test_what_the_form_writes_it_reads(form: ToolForm) -> None:
    tools = [Tool.of(get_weather), Tool.of(Stop)]
    calls: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": "Oslo", "days": 3}), ("Stop", {"reason": "late"})]
    calls = calls if form.separator else calls[1:]
    text = form.written(calls)
    assert form.calls(text) == calls
    assert all(form.calls(text[:n]) == calls[: len(form.calls(text[:n]))] for n in range(len(text)))
    marker = form.marker("[TOOL_CALLS]")
    rest = text[len(marker) :]
    expression = form.expression(tools, marker)
    assert expression.accepts(rest)
    assert not expression.accepts(rest.replace("late", "soon"))
    assert not expression.accepts(rest.replace('": ', '":'))  # as no template would write it


def test_a_call_of_a_pydantic_model_is_an_object_of_it() -> None:
    class Place(BaseModel):
        """Name a place."""

        city: Literal["Oslo"] = Field(alias="theCity")
        stop: Stop

    called = Chat(chat_model("Qwen3")).user("x").assistant(_caller("Qwen3"), tools=[Place], max_tokens=60)
    place = called.tool_calls[0].run()
    assert isinstance(place, Place)
    assert (place.city, isinstance(place.stop, Stop), place.model_dump(by_alias=True)["theCity"]) == ("Oslo", True, "Oslo")


def test_a_tool_may_leave_its_arguments_open() -> None:
    """As some of MCP do: any other members, values of any type, and what only a check can tell."""
    properties = {"tags": {"type": "array", "uniqueItems": True, "maxItems": 2}, "any": {}}
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    tool = Tool.of({"name": "f", "title": None, "description": None, "inputSchema": schema})
    assert (tool.description, tool.message["function"]["parameters"]) == ("", schema)
    text = HERMES.written([("f", {"tags": [1, {"a": "b, c: d"}], "other": ["x"]}), ("f", {})]).removeprefix("<tool_call>")
    expression = HERMES.expression([tool], "<tool_call>")
    assert expression.accepts(text)
    assert not expression.accepts(text.replace('"tags": [1,', '"tags":[1,'))
    assert not expression.accepts(text.replace('[1, {"a": "b, c: d"}]', "[1, 1]"))
    called = Chat(chat_model("Qwen3")).user("x").assistant(_caller("Qwen3"), tools=[tool], max_tokens=40)
    assert called.finish_reason in ("length", "constraint")


@pytest.mark.parametrize("form", ["inputSchema", "input_schema", "parameters"])
def test_arguments_have_no_members_that_a_tool_does_not_name(form: str) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"inner": inner, "free": {"type": "object"}}}
    tool = Tool.of({"name": "f", form: schema})
    expression = HERMES.expression([tool], "<tool_call>")

    def is_written(arguments: dict[str, Any]) -> bool:
        return bool(expression.accepts(HERMES.written([("f", arguments)]).removeprefix("<tool_call>")))

    assert tool.message["function"]["parameters"] == schema  # what the model is told is what was given
    assert is_written({"inner": {"a": 1}, "free": {"b": 2}})
    assert not is_written({"other": 1})
    assert not is_written({"inner": {"b": 1}})


def test_mistral_common_renders_by_itself() -> None:
    tokenizer = tokenizer_of("SentencePiece 32k in mistral-common")
    size = len(tokenizer.token_bytes)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = MistralConfig(vocab_size=size, num_attention_heads=1, num_key_value_heads=1, **shape)
    model = models.from_transformers(MistralForCausalLM(config), tokenizer)
    library: Any = tokenizer.hugging_face
    chat = Chat(model).user("Hi [INST] there").assistant("Good day.").user("Rain?")
    assert list(chat.state.rows[0][0].token_ids) == library.apply_chat_template(chat.messages, return_dict=False)
    token_id = next(i for i, name in tokenizer.special_tokens.items() if name == "[TOOL_CALLS]")
    caller = generate.text(model, sampler=samplers.greedy(logit_bias={token_id: 100.0}))
    chat = Chat(model, tools=[Stop]).user("Enough.")
    assert chat._format.form is not None
    assert chat._format.form.marker("[TOOL_CALLS]") == "[TOOL_CALLS]"
    form = replace(chat._format.form, separator=None)
    called = Chat(model, tool_form=form).user("Enough.").assistant(caller, tools=[Stop], max_tokens=200)
    assert called.tool_calls[0].arguments["reason"] in ("done", "late")
    told = called.tool("Good bye.")
    wanted = library.apply_chat_template(told.messages, tools=[Tool.of(Stop).message], return_dict=False)
    assert tokenizer.text_bytes(wanted) == tokenizer.text_bytes(told.state.rows[0][0].token_ids)
    with pytest.raises(ChatError, match="mistral-common"):
        Chat(model).user("a").user("b").assistant("c").message({"role": "tool", "content": "x"}).state


def test_several_conversations_call_in_one_batch() -> None:
    model = chat_model("Mistral")
    chats = [Chat(model, rng=1).user("Rain?"), Chat(model, rng=2).user("Snow in Oslo?")]
    called = Chat.replies(chats, _caller("Mistral"), tools=[Stop], max_tokens=200)
    alone = [chat.assistant(_caller("Mistral"), tools=[Stop], max_tokens=200) for chat in chats]
    assert called == alone
    assert all(chat.tool_calls[0].arguments["reason"] in ("done", "late") for chat in called)
    with pytest.raises(OptionError, match="the same tools"):
        Chat.replies([Chat(model, tools=[Stop]).user("a"), Chat(model).user("b")], max_tokens=1)


def test_calls_of_others_are_read_whatever_they_are_written_in() -> None:
    call: dict[str, Any] = {"id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    for kind in ("Qwen3", "plain"):
        chat = Chat(chat_model(kind), tools=[get_weather]).user("Rain?")
        given = chat.message({"role": "assistant", "content": None, "tool_calls": [call]})
        assert given.tool_calls[0].arguments == {"city": "Oslo", "days": 1}
        assert given.tool_calls[0].run() == "Oslo: rain for 1 days"
    for wrong in ({"function": {}}, {"function": {"name": "f", "arguments": [1]}}, 3):
        with pytest.raises(ChatError, match="expected"):
            chat.message({"role": "assistant", "content": "", "tool_calls": [wrong]})
    with pytest.raises(OptionError, match="with a name"):
        Tool.of({"type": "function", "function": {"parameters": {"type": "object"}}})


def test_tools_are_described_as_templates_read_them() -> None:
    message = Tool.of(get_weather).message["function"]
    assert message["description"] == "Tell the weather of a city."
    assert message["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"description": "Which one.", "enum": ["Paris", "Oslo"], "type": "string"},
            "days": {"description": "How many days ahead.", "default": 1, "type": "integer"},
        },
        "required": ["city"],
    }
    given = {"name": "f", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    assert Tool.of(given).message["function"]["parameters"] == given["inputSchema"]
    with pytest.raises(OptionError, match="function with type hints"):
        Tool.of(3)
    with pytest.raises(OptionError, match="different names"):
        Chat(chat_model("Qwen3"), tools=[Stop, Stop])
    with pytest.raises(OptionError, match="'hermes'"):
        Chat(chat_model("Qwen3"), tool_form="hermse")
    with pytest.raises(OptionError, match="a list of tools"):
        Chat(chat_model("Qwen3"), tools=get_weather)  # type: ignore[arg-type]
    with pytest.raises(ChatError, match="has no result yet"):
        Chat(chat_model("Qwen3")).user("a").tool("b")


def test_a_template_without_tools_has_them_in_the_message_of_the_system() -> None:
    chat = Chat(chat_model("plain"), tools=[get_weather]).system("Be kind.").user("Rain?")
    text = str(chat.state)
    assert text.startswith("system: Be kind.\n\nYou may call these functions:\n{")
    assert "get_weather" in text
    assert chat.messages[0] == {"role": "system", "content": "Be kind."}
    called = chat.assistant(_caller("plain"), tools=[get_weather], max_tokens=300)
    text = str(called.tool(called.tool_calls[0].run()).state)
    assert "<tool_response>\n" in text
    assert text.endswith("assistant: ")
    assert Chat(chat_model("Qwen3"), template=PLAIN, tools=[Stop])._format.form == GENERIC


def test_a_form_that_cannot_be_read_is_to_be_given() -> None:
    call = "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}"
    odd = "{% for m in messages %}{{ m.content }}" + call + "<|im_end|>{% endfor %}"
    with pytest.raises(ChatError, match="tool_form"):
        Chat(chat_model("Qwen3"), template=odd, tools=[Stop])
    assert Chat(chat_model("Qwen3"), template=odd, tools=[Stop], tool_form="llama3")._format.form == LLAMA3


def test_calls_are_saved(tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    chat = Chat(model).user("Rain?").assistant(_caller("Qwen3"), tools=[get_weather], max_tokens=300)
    chat.save(tmp_path / "chat")
    loaded = Chat.load(tmp_path / "chat", model)
    assert [call.name for call in chat.tool_calls] == [call.name for call in loaded.tool_calls]
    with pytest.raises(OptionError, match="is a Python function"):
        loaded.tool_calls[0].run()
    again = Chat.load(tmp_path / "chat", model, tools=[get_weather])
    assert again.tool_calls[0].run() == chat.tool_calls[0].run()
    assert chat.tool("rain") == loaded.tool("rain")
    assert list(chat.tool("rain").state.rows[0][0].token_ids) == list(loaded.tool("rain").state.rows[0][0].token_ids)


@given(st.text("ab<{", max_size=12), st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_events_of_a_reply_are_split_at_the_marker(before: str, calls: bool, sizes: list[int]) -> None:
    """Whatever the sizes of the events, the text before the marker and the calls behind it are told, each once."""
    before = before.replace("<tool_call>", "")
    written = HERMES.written([("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Paris"})])
    whole = before + (written if calls else "")
    begin = len(before) + len("<tool_call>") if calls else None
    maker = SimpleNamespace(marker="<tool_call>", marker_id=None, calls_begin=lambda ids, start, healed: begin)
    tokenizer = SimpleNamespace(text_bytes=lambda text: text.encode())
    events = object.__new__(ReplyEvents)
    events._call = SimpleNamespace(rows=[SimpleNamespace(token_ids=whole, piece_ids=whole, piece_start=0, healed=b"")])  # type: ignore[assignment]
    events._constraint, events._tokenizer = maker, tokenizer  # type: ignore[assignment]
    events._calls = OpenCalls(HERMES, [Tool.of(get_weather)], str, "<tool_call>")
    events._num_seen, events._begin, events._reads_tokens = 0, None, False
    told, found, rest = "", list[OpenCall](), whole
    for size in [*sizes, len(whole) + 1]:
        # The marker is not final before it is complete.
        size = size if begin is None or len(whole) - len(rest) + size < len(before) else len(rest)
        for event in events.of(StreamEvent(batch=0, sample=0, text=rest[:size])):
            told += event.text
            found += [event.call] if event.call is not None else []
        rest = rest[size:]
    assert told == before
    names = [call.arguments for call in found if call.is_whole]
    assert [one["city"] for one in names] == (["Oslo", "Paris"] if calls else [])


def test_a_conversation_is_printed_with_its_calls() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "weather", "arguments": '{"city": "Évora", "days": 2}'}}
    chat = (
        Chat(chat_model("Qwen3"))
        .user("How is it?")
        .message({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        .message({"role": "tool", "name": "weather", "content": "sunny"})
        .message({"role": "assistant", "content": None, "tool_calls": [call, call]})
    )
    assert str(chat).splitlines() == [
        "user: How is it?",
        "assistant: I look.",
        'weather(city="Évora", days=2)',
        "tool weather: sunny",
        'assistant: weather(city="Évora", days=2)',
        'weather(city="Évora", days=2)',
    ]
    assert readable({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]}) == "user: Hi <image>"
