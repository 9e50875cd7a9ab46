"""Checks of chat messages: `checked_message` (role, content, tool calls; a deep copy), `is_conversation`, and `call_arguments`, which also
parses arguments that are JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from outlines_cont.errors import ChatError

Message = Mapping[str, Any]


def is_conversation(value: object) -> bool:
    """Return whether a value is a list of messages: dicts with a role."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def checked_message(message: object) -> dict[str, Any]:
    """Return a message as a dict of its own.

    Raises:
        ChatError: it has no role, its content is neither a text nor a list of parts, or its calls have no name or no arguments.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ChatError(
            f"expected a message with a `role`, such as {{'role': 'user', 'content': 'Hi'}}, got {message!r}"
        )
    content = message.get("content")
    is_parts = isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content)
    has_others = bool(set(message) - {"role", "content"})
    if not isinstance(content, str) and not is_parts and not (content is None and has_others):
        raise ChatError(
            "expected a text as the content of a message, or a list of parts such as {'type': 'text', 'text': 'Hi'}, got "
            f"{content!r} of the {message['role']}"
        )
    for function in called_functions(message):
        call_arguments(function)
    return deepcopy(dict(message))


def called_functions(message: Message) -> list[Mapping[str, Any]]:
    """Return name and arguments of the calls in a message.

    Raises:
        ChatError: a call has no name.
    """
    calls = message.get("tool_calls") or ()
    functions = []
    for call in calls if isinstance(calls, list | tuple) else (calls,):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ChatError(
                "expected calls such as {'type': 'function', 'id': '...', 'function': {'name': 'f', 'arguments': {}}} as "
                f"`tool_calls`, got {call!r}"
            )
        functions.append(function)
    return functions


def call_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, a dict or the text of a JSON object.

    Raises:
        ChatError: they are not a JSON object.
    """
    found = function.get("arguments", {})
    try:
        arguments = json.loads(found) if isinstance(found, str) else found
    except ValueError:
        arguments = None
    if not isinstance(arguments, Mapping):
        raise ChatError(
            f"expected the arguments of {function['name']!r} as a dict, or as an object of JSON, got {found!r}"
        )
    return deepcopy(dict(arguments))
