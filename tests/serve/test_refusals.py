"""What is wrong with a request is told in the words of this package, with the place once; unknown names get the nearest known one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from outlines_cont import models
from outlines_cont.checks import said_of
from outlines_cont.serve.app import _BODIES, _place
from tests.serve.hostile import spoiled
from tests.serve.running import Running

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SAID = [{"role": "user", "content": "Hello"}]
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID, "tools": [{"type": "function", "function": WEATHER}], "stop": ["a"], "temperature": 0.5, "logprobs": True},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3, "logit_bias": {"3": 1}},
    RESPONSES: {"input": [{"role": "user", "content": "Hello"}], "text": {"format": {"type": "text"}}, "max_output_tokens": 3},
    MESSAGES: {"messages": SAID, "max_tokens": 3, "system": [{"type": "text", "text": "a"}], "thinking": {"type": "disabled"}},
}
PYDANTIC = ("Input should", "Value error", "Extra inputs", "Field required", "after validation", "valid ", "Input tag")


@pytest.fixture(scope="module")
def served() -> Any:
    with Running(models.tiny(), max_tokens=3) as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
def test_no_refusal_has_the_words_of_pydantic_and_each_names_its_place_once(path: str) -> None:
    kinds, rng = set(), random.Random(path)
    fields = [*_BODIES[path].model_fields]
    for _ in range(700):
        body = json.loads(spoiled({"model": "tiny", **BODIES[path]}, fields, rng))
        try:
            TypeAdapter(_BODIES[path]).validate_python(body)
        except (ValidationError, RecursionError, UnicodeEncodeError) as error:
            for one in error.errors() if isinstance(error, ValidationError) else ():
                place = _place({**one, "loc": ("body", *one["loc"])}, body)
                told, named = said_of(one, place), "/".join(place)
                kinds.add(one["type"])
                assert not any(words in told for words in PYDANTIC), told
                assert named in told
                assert told.count(named) == 1 or "/" not in named, told
                assert len(told) < 4_000 + len(named)
    assert len(kinds) > 9, kinds


@pytest.mark.parametrize(
    ("path", "change", "told"),
    [
        (CHAT, {"temperature": "hot"}, "expected a number as `temperature`, got 'hot'"),
        (CHAT, {"temperature": -1}, "expected 0 or more as `temperature`, got -1"),
        (CHAT, {"messages": []}, "expected a list of 1 or more as `messages`, got an empty list"),
        (CHAT, {"tools": [{"type": "fn"}]}, "expected 'function', 'custom' as `tools/0/type`, got 'fn'"),
        (
            MESSAGES,
            {"thinking": {"type": "on"}},
            "expected 'enabled', 'disabled', 'adaptive' or 'between_tools' as `thinking/type`, got 'on'",
        ),
        (MESSAGES, {"max_tokens": None, "max_token": 3}, "unknown field `max_token`. Did you mean 'max_tokens'?"),
        (MESSAGES, {"temperatur": 1}, "unknown field `temperatur`. Did you mean 'temperature'?"),
        (
            CHAT,
            {"tool_choice": {"type": "function", "function": {"name": "get_wether"}}},
            "expected 'auto' or 'get_weather' as `tool_choice`, got 'get_wether'. Did you mean 'get_weather'?",
        ),
        (
            MESSAGES,
            {"tools": [{"name": "get_weather", "input_schema": {"type": "object"}}], "tool_choice": {"type": "tool", "name": "get_wether"}},
            "expected 'auto' or 'get_weather' as `tool_choice`, got 'get_wether'. Did you mean 'get_weather'?",
        ),
    ],
    ids=str,
)
def test_a_refusal_says_what_was_expected_and_what_was_received(served: Running, path: str, change: dict[str, Any], told: str) -> None:
    body = {name: value for name, value in ({"model": "tiny"} | BODIES[path] | change).items() if value is not None}
    found = served.post(path, body)
    assert (400, told) == (found.status_code, found.json()["error"]["message"])
