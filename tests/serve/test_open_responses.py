"""The cases of Open Responses' compliance suite, with the types of its specification (the package `openresponses-types`, made of the
OpenAPI document from which the suite checks replies, too). The suite itself is no package: it runs from a checkout of its repository.

pip install -c constraints.txt '.[test,clients]' && pytest -m clients tests/serve/test_open_responses.py
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.running import Running

types = pytest.importorskip("openresponses_types", reason="needs openresponses-types: pip install -c constraints.txt '.[clients]'").types
pytestmark = pytest.mark.clients

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
EVENTS: dict[str, Any] = {
    str(kind): event
    for name, event in vars(types).items()
    if name.endswith("StreamingEvent")
    for kind in event.model_fields["type"].annotation
}
# The thoughts of a stream have the names that OpenAI's clients know.
NAMES = {f"response.reasoning_text.{end}": f"response.reasoning.{end}" for end in ("delta", "done")}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "basic-response": ({"input": [said("user", "Say hello in three words.")]}, "message"),
    "system-prompt": ({"input": [said("system", "Speak as a pirate."), said("user", "Say hello.")]}, "message"),
    "multi-turn": (
        {"input": [said("user", "My name is Alice."), said("assistant", "Hello Alice!"), said("user", "What is my name?")]},
        "message",
    ),
    "tool-calling": (
        {
            "input": [said("user", "What is the weather in Oslo?")],
            "tools": [WEATHER],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        "function_call",
    ),
    "tool-result": (
        {
            "input": [
                said("user", "What is the weather in Oslo?"),
                {"type": "function_call", "call_id": "call00000", "name": "get_weather", "arguments": '{"location": "Oslo"}'},
                {"type": "function_call_output", "call_id": "call00000", "output": "Rain."},
            ],
            "tools": [WEATHER],
            "tool_choice": "none",
        },
        "message",
    ),
    "structured-output": (
        {
            "input": "Which colour?",
            "text": {"format": {"type": "json_schema", "name": "colour", "strict": True, "schema": {"enum": ["red", "blue"]}}},
        },
        "message",
    ),
}


def valid(response: dict[str, Any]) -> dict[str, Any]:
    """The response, which has the form of the specification."""
    format_ = response["text"]["format"]
    # The package reads a schema, which is an object or null there, as null.
    text = response["text"] | {"format": format_ | ({"schema": None} if isinstance(format_.get("schema"), dict) else {})}
    types.ResponseResource.model_validate(response | {"text": text})
    return response


def streamed(served: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each of which has the form of the specification."""
    lines = served.post(PATH, body | {"stream": True}).text.split("\n")
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for event in found:
        kind = NAMES.get(event["type"], event["type"])
        if "response" in event:
            valid(event["response"])
        else:
            EVENTS[kind].model_validate(event | {"type": kind})
    return found


@pytest.mark.parametrize(("asked", "kind"), CASES.values(), ids=CASES)
def test_a_case_of_the_suite(served: Running, asked: dict[str, Any], kind: str) -> None:
    body = {"model": "tiny", "temperature": 0, "max_output_tokens": 200} | asked
    types.CreateResponseBody.model_validate(body)
    whole = valid(served.post(PATH, body).json())
    assert whole["status"] == "completed"
    assert [item["type"] for item in whole["output"]] == [kind]
    events = streamed(served, body)
    order = [event["type"] for event in events]
    assert order[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert order[-2:] == ["response.output_item.done", "response.completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {"response.output_text.delta", "response.function_call_arguments.delta"} & {*order}
    assert events[2]["item"]["type"] == events[-2]["item"]["type"] == kind
    text = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    (item,) = valid(events[-1]["response"])["output"]
    assert text == (item["content"][0]["text"] if kind == "message" else item["arguments"])


def test_an_image_is_refused_as_the_models_read_text(served: Running) -> None:
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    reply = served.post(PATH, {"model": "tiny", "input": [said("user", parts)]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert "takes images" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("effort", "last"), [("low", "response.incomplete"), (None, "response.incomplete")])
def test_thoughts_and_cut_replies_have_the_form_of_the_specification(thinking: Running, effort: str | None, last: str) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": "Rain?", "seed": 1, "max_output_tokens": 40, "top_logprobs": 2}
    events = streamed(thinking, body if effort is None else body | {"reasoning": {"effort": effort}})
    assert events[-1]["type"] == last
    response = valid(events[-1]["response"])
    assert response["output"][0]["type"] == ("message" if effort is None else "reasoning")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
