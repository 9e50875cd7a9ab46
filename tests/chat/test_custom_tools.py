"""Custom tools: a call whose input is a text under a grammar or a regular expression, in the forms of known models."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsm
from outlines_cont import Chat, OpenCall, generate, samplers
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import FORMS
from outlines_cont.errors import ChatError, OptionError
from tests.chat_models import CALLING, GPT_OSS, chat_model

SUM = 'start: sum\nsum: NUMBER | "(" sum "+" sum ")"\nNUMBER: /[0-9]{1,3}/'
SHELL = r'(?:ls|cat) "[^"\n]{0,9}"(?:\n<[a-z]>)?'
NOTE: Any = {"type": "custom", "name": "note", "description": "Keep a note."}
CALC: Any = {"type": "custom", "custom": {"name": "calc", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": SUM}}}}
RUN: Any = {"type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "regex", "definition": SHELL}}
RAW = ("qwen3-coder", "gemma")


def _chat(form: str, tool: Any, **options: Any) -> Chat:
    if form == "harmony":
        return Chat(chat_model("gpt-oss"), template=GPT_OSS, tools=[tool], **options).user("Go")
    if form in ("hermes", "llama3", "generic"):
        return Chat(chat_model({"hermes": "Qwen3", "llama3": "Llama 3", "generic": "plain"}[form]), tools=[tool], **options).user("Go")
    return Chat(chat_model("tools"), template=CALLING[form], tools=[tool], **options).user("Go")


@pytest.mark.parametrize("form", ["hermes", "llama3", "generic", "harmony", "mistral-args", "pythonic", *RAW])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_input_of_a_call_is_a_text_of_the_language(form: str, seed: int) -> None:
    chat = _chat(form, RUN, rng=seed)
    draw = generate.text(chat.model, sampler=samplers.multinomial())
    options: Any = {"tool_choice": "run", "max_calls": 1, "max_tokens": 300}
    called = chat.assistant(draw, **options)
    (call,) = called.tool_calls
    assert call.arguments.keys() == {"input"}
    assert re.fullmatch(SHELL, call.arguments["input"])
    stream = chat.stream(draw, **options)
    parts = [event.call for event in stream if event.call is not None]
    assert parts[-1].arguments == call.arguments
    assert stream.chat == called
    # The template writes the call as the model has, and the next turn feeds only what is new.
    own, told = ([*one.state.rows[0][0].token_ids] for one in (called, called.tool("done")))
    assert told[: len(own)] == own


@pytest.mark.parametrize("form", ["hermes", "harmony", "pythonic"])
def test_a_grammar_may_be_recursive_in_a_form_of_json(form: str) -> None:
    chat = _chat(form, CALC, rng=1)
    deep = generate.text(chat.model, sampler=samplers.multinomial(temperature=1.5))
    called = chat.assistant(deep, tool_choice="calc", max_calls=1, max_tokens=400)
    if called.finish_reason != "length":
        assert isinstance(ast.parse(called.tool_calls[0].arguments["input"].lstrip("0") or "0"), ast.Module)
        assert fsm.grammar(SUM).accepts(called.tool_calls[0].arguments["input"])


def test_the_text_grows_in_a_stream() -> None:
    chat = _chat("hermes", RUN, rng=3)
    draw = generate.text(chat.model, sampler=samplers.multinomial())
    parts: list[OpenCall] = [event.call for event in chat.stream(draw, tool_choice="run", max_calls=1, max_tokens=300) if event.call]
    texts = [part.arguments.get("input", "") for part in parts]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert len(set(texts)) > 3


@given(st.sampled_from(sorted(set(FORMS) - {"harmony"})), st.from_regex(SHELL, fullmatch=True).filter(str.isascii))
def test_what_is_written_is_in_the_language_and_is_read(form: str, text: str) -> None:
    tool = Tool.of(RUN)
    written = FORMS[form].written([("run", {"input": text})])
    is_kept = "</parameter>" not in text and "<escape>" not in text
    assert FORMS[form].expression([tool], "").accepts(written) == is_kept
    assert FORMS[form].calls(written, [tool]) == [("run", {"input": text})]
    assert not FORMS[form].expression([tool], "").accepts(FORMS[form].written([("run", {"input": text + "!"})]))


@pytest.mark.parametrize("form", RAW)
def test_a_form_that_ends_a_text_with_a_mark_takes_no_grammar(form: str) -> None:
    with pytest.raises(ChatError, match="hermes"):
        _chat(form, CALC).assistant(tool_choice="calc")
    assert _chat(form, NOTE).assistant(tool_choice="note", max_tokens=5).finish_reason == "length"


def test_the_model_is_told_of_the_language() -> None:
    (told,) = _chat("hermes", CALC)._format.tool_messages
    assert SUM in told["function"]["parameters"]["properties"]["input"]["description"]
    (plain,) = _chat("hermes", NOTE)._format.tool_messages
    assert plain["function"]["description"] == "Keep a note."
    assert plain["function"]["parameters"]["properties"] == {"input": {"type": "string"}}


def test_a_function_takes_the_text() -> None:
    shout = Tool.of_text("shout", "Say it loudly.", fsm.choice(["yes", 'a "no"']), function=lambda input: input.upper())
    called = _chat("pythonic", shout).assistant(tool_choice="shout", max_calls=1, max_tokens=60)
    assert called.tool_calls[0].run() in ("YES", 'A "NO"')


@pytest.mark.parametrize("form", [{"type": "grammar"}, {"type": "grammar", "syntax": "yacc", "definition": "a"}, "text"])
def test_a_format_that_is_not_known_is_refused(form: Any) -> None:
    with pytest.raises(OptionError, match="lark"):
        Tool.of({**NOTE, "format": form})
    with pytest.raises(fsm.GrammarError):
        Tool.of({**NOTE, "format": {"type": "grammar", "syntax": "lark", "definition": "start: ("}})
