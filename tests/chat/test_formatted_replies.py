"""A reply that is calls, or a text under a constraint: which of both the first tokens decide, and each of them is whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fsm
from outlines_cont import Chat, generate, samplers
from outlines_cont.chats.tool_form import FORMS
from outlines_cont.errors import OptionError
from tests.chat.test_chat_tools import _FORMS, Stop
from tests.chat_models import CALLING, chat_model

ARRAY = {"type": "array", "items": {"enum": ["f", "g"]}, "minItems": 1, "maxItems": 2}
DIGIT = {"type": "integer", "maximum": 9, "minimum": 0}
CHECKED = {"type": "array", "prefixItems": [DIGIT], "items": DIGIT, "maxItems": 3, "uniqueItems": True}
FORM = {"type": "object", "properties": {"name": {"enum": ["Stop", "x"]}}, "required": ["name"], "additionalProperties": False}
DRAWN = samplers.multinomial(temperature=1.0)


def _chats(kind: str, count: int) -> list[Chat]:
    template = CALLING.get(kind)
    model = chat_model("tools" if template else kind)
    return [Chat(model, template=template, tools=[Stop], rng=seed).user("Rain?") for seed in range(count)]


@pytest.mark.parametrize("schema", [ARRAY, FORM, CHECKED], ids=["array", "object", "checked"])
@pytest.mark.parametrize("kind", [*_FORMS, "pythonic", "mistral-args", "gemma"])
def test_a_reply_is_calls_or_a_text_that_conforms(kind: str, schema: Any) -> None:
    for chat in _chats(kind, 6):
        writer = generate.json(chat.model, schema, sampler=DRAWN)
        stream = chat.stream(writer, tools=[Stop], max_tokens=120, max_calls=1)
        events = list(stream)
        text, calls = "".join(event.text for event in events), [event.call for event in events if event.call is not None]
        replied = stream.chat
        assert replied == chat.assistant(writer, tools=[Stop], max_tokens=120, max_calls=1)
        if replied.finish_reason == "length":
            continue
        if calls:
            assert (text, replied.value) == ("", None)
            assert json.loads("".join(call.text for call in calls))["reason"] in ("done", "late")
            assert [call.id for call in replied.tool_calls] == [calls[0].id]
        else:
            assert json.loads(text) == replied.value
            assert fsm.json_schema(schema).accepts(text)
            assert replied.tool_calls == ()


@pytest.mark.parametrize("kind", ["Qwen3", "plain", "Llama 3"])
def test_what_is_chosen_has_the_probability_that_the_model_gives_it(kind: str) -> None:
    """A bias on the first token of either decides."""
    (chat,) = _chats(kind, 1)
    before = _FORMS[kind].before
    for text, is_call in ((before, True), ("yes", False)):
        first = (
            chat.model.tokenizer.encode_inside(text)[0] if kind != "Qwen3" or not is_call else chat.model.tokenizer.encode_special(text)[0]
        )
        sampler = samplers.greedy(logit_bias={first: 100.0})
        writer = generate.choice(chat.model, ["yes", "no"], sampler=sampler)
        replied = chat.assistant(writer, tools=[Stop], max_tokens=100, max_calls=1)
        assert bool(replied.tool_calls) == is_call
        assert replied.value == (None if is_call else "yes")


@pytest.mark.parametrize("kind", ["Qwen3", "plain", "Llama 3"])
def test_a_call_inside_of_a_text_is_text(kind: str) -> None:
    form, (chat,) = _FORMS[kind], _chats(kind, 1)
    inside = "So: " + form.written([("Stop", {"reason": "done"})])
    sampler = samplers.greedy(logit_bias={chat.model.tokenizer.encode_inside('"')[0]: 100.0})
    for source in ({"const": inside}, {"const": [inside]}):
        said = chat.assistant(generate.json(chat.model, source, sampler=sampler), tools=[Stop], max_tokens=150)
        if not said.tool_calls:  # an array begins with another token
            assert (said.value, said.messages[-1]["content"]) == (source["const"], json.dumps(source["const"], separators=(",", ":")))
    assert chat.assistant(generate.choice(chat.model, [inside]), tools=[Stop], max_tokens=150).value in (inside, None)


def test_a_text_that_begins_as_a_call_does_is_a_call() -> None:
    (chat,) = _chats("plain", 1)
    begun = generate.regex(chat.model, "<tool_call>.*")
    assert chat.assistant(begun, tools=[Stop], max_tokens=100, max_calls=1).tool_calls[0].arguments["reason"] in ("done", "late")
    grammar = generate.cfg(chat.model, 'start: "<tool_call>" start "</tool_call>" | "x"')
    with pytest.raises(OptionError, match="without a text that begins as a call does"):
        chat.assistant(grammar, tools=[Stop])


@pytest.mark.parametrize("kind", ["Qwen3", "plain"])
def test_a_reply_that_was_cut_goes_on(kind: str) -> None:
    for chat in _chats(kind, 4):
        writer = generate.json(chat.model, ARRAY, sampler=DRAWN)
        whole = chat.assistant(writer, tools=[Stop], max_tokens=90, max_calls=1)
        for first in (1, 3, 6):
            cut = chat.assistant(writer, tools=[Stop], max_tokens=first, max_calls=1)
            if cut.finish_reason == "length" and not cut.tool_calls:
                assert cut.resume(writer, tools=[Stop], max_tokens=90) == whole


def test_the_forms_of_calls_are_those_of_the_table() -> None:
    assert {"pythonic", "mistral-args", "gemma"} <= {*FORMS}
