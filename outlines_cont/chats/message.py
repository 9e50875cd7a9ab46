"""Messages of chats as dicts: checks (`checked_message`, a deep copy; `is_conversation`), their calls (`called_functions`;
`call_arguments`, which parses arguments that are JSON text; `with_parsed_calls`), and `Turn`, one message of a `Chat`, which `turns_json`
and `read_turns` write and read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from fsm.errors import is_one_of
from outlines_cont.errors import ChatError, shortened

Message = Mapping[str, Any]


def is_conversation(value: object) -> bool:
    """Return whether a value is a list of messages: dicts with a role."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def with_schema(messages: Sequence[Message], text: str, *, has_system: bool = True) -> Sequence[Message]:
    """Return messages that show the text of a schema, see `with_instruction`; the same, if they do already."""
    told = f"Answer with JSON of this form:\n{text}"
    shown = with_instruction(messages, told, has_system=has_system)
    return messages if any(told in str(message.get("content")) for message in messages) else shown


def with_instruction(messages: Sequence[Message], text: str, *, has_system: bool = True) -> list[Message]:
    """Return messages with an instruction for the model: at the end of the first message, if that is one of the system, else before all.

    `has_system`: whether the template writes messages of the system; else the first message of the user begins with the instruction.
    """
    first = messages[0] if messages else {}
    content = first.get("content")
    if first.get("role") in ("system", "developer") and content is not None:
        return [{**first, "content": _below(content, text)}, *messages[1:]]
    asked = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if has_system or asked is None:
        return [{"role": "system", "content": text}, *messages]
    told = {**messages[asked], "content": _below(text, messages[asked].get("content") or "")}
    return [*messages[:asked], told, *messages[asked + 1 :]]


def _below(first: Any, second: Any) -> Any:
    """Return two contents with an empty line between them."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}" if second else first
    return joined(first, second)


def joined(*contents: Any) -> Any:
    """Return contents as one: a text, if all are; else the parts of all."""
    if all(isinstance(content, str) for content in contents):
        return "".join(contents)
    return [part for content in contents for part in _parts_of(content)]


def _parts_of(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [*content]


def checked_message(message: object) -> dict[str, Any]:
    """Return a deep copy of a message.

    Raises:
        ChatError: it has no role, its content is neither a text nor a list of parts, or a call has no name or invalid arguments.
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
    try:
        return deepcopy(dict(message))
    except Exception as error:  # of any type of a value that cannot be copied, such as a generator
        raise ChatError(
            f"expected a message of values that can be copied, got {shortened(repr(message))}: {error}"
        ) from error


def called_functions(message: Message) -> list[Mapping[str, Any]]:
    """Return the function, with `name` and `arguments`, of each call in a message; raise `ChatError` if a call has no name."""
    functions = []
    for call in _calls_of(message):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ChatError(
                "expected calls such as {'type': 'function', 'id': '...', 'function': {'name': 'f', 'arguments': {}}} as "
                f"`tool_calls`, got {call!r}"
            )
        functions.append(function)
    return functions


def _calls_of(message: Message) -> Sequence[Any]:
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        return calls
    return () if calls is None or is_one_of(calls, ("", False)) else (calls,)


def called_ids(message: Message) -> list[str]:
    """Return the ids of the calls in a message that have one."""
    return [call["id"] for call in _calls_of(message) if isinstance(call, Mapping) and isinstance(call.get("id"), str)]


def call_arguments(function: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the arguments of a call: none for an empty text and None; a text that is no JSON object, as that of a call that was cut.

    Raises:
        ChatError: they are neither a text nor a dict.
    """
    found = function.get("arguments")
    if found is None or (isinstance(found, str) and not found.strip()):
        return {}
    if isinstance(found, Mapping):
        return deepcopy(dict(found))
    if not isinstance(found, str):
        raise ChatError(
            f"expected the arguments of {function['name']!r} as a dict, or as an object of JSON, got {found!r}"
        )
    try:
        arguments = json.loads(found)
    except (ValueError, RecursionError):
        return found
    return {} if arguments is None else arguments if isinstance(arguments, dict) else found


def with_parsed_calls(message: Message) -> Message:
    """Return a message whose calls have their arguments as dicts, if these are objects of JSON; the same, if it has no calls."""
    if not message.get("tool_calls"):
        return message
    pairs = zip(_calls_of(message), called_functions(message), strict=True)
    return {
        **message,
        "tool_calls": [{**call, "function": {**called, "arguments": call_arguments(called)}} for call, called in pairs],
    }


def readable(message: Message) -> str:
    """Return a message for people: role, text, and each call as `name(argument=value)`."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text") or f"<{part.get('type')}>" for part in content)
    calls = []
    for function in called_functions(message):
        given = call_arguments(function)
        shown = given if isinstance(given, str) else ", ".join(f"{key}={_shown(value)}" for key, value in given.items())
        calls.append(f"{function['name']}({shown})")
    name = f" {message['name']}" if isinstance(message.get("name"), str) else ""
    return f"{message['role']}{name}: " + "\n".join(filter(None, (content, *calls)))


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message, as templates read it.

    `text` is that of a reply in the row, None if it is not known, or if the reply has thoughts, which the template writes; `value` is what
    the generator has parsed.
    """

    message: Mapping[str, Any]
    text: str | None = None
    value: Any = None

    @property
    def is_reply(self) -> bool:
        """Whether the message is one of the model."""
        return bool(self.message["role"] == "assistant")

    @property
    def thoughts(self) -> str:
        """The reasoning of a reply; empty without any."""
        return str(self.message.get("reasoning_content") or "")

    def thinking(self, thoughts: str, text: str, value: Any) -> Turn:
        """Return a reply with thoughts, without white space around them, and with `text` at its end."""
        content = (self.message.get("content") or "") + text
        message = {**self.message, "content": content, "reasoning_content": thoughts.strip()}
        return replace(self, message=message, text=None, value=value)

    def extended(self, text: str, value: Any, cut: int) -> Turn:
        """Return a reply with `text` in place of its last `cut` characters."""
        content, known = ((part or "") for part in (self.message.get("content"), self.text))
        message = {**self.message, "content": content[: max(len(content) - cut, 0)] + text}
        known = None if self.thoughts else known[: max(len(known) - cut, 0)] + text
        return replace(self, message=message, text=known, value=value)


class _TurnRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    message: dict[str, Any]
    text: str | None
    value: Any


class _ChatRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    turns: list[_TurnRecord]
    options: dict[str, Any]
    tools: list[dict[str, Any]] = []


def turns_json(turns: Sequence[Turn], options: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as JSON; raise `ChatError` if JSON cannot hold a message or an option."""
    records = [{"message": turn.message, "text": turn.text, "value": turn.value} for turn in turns]
    try:
        return json.dumps({"turns": records, "options": options, "tools": tools}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ChatError(f"expected messages that JSON can hold, to save them: {error}") from error


def read_turns(text: str) -> tuple[tuple[Turn, ...], dict[str, Any], list[dict[str, Any]]]:
    """Return the turns, the options of the template, and the tools of a conversation that `turns_json` has written.

    Raises:
        pydantic.ValidationError, ChatError: it is something else.
    """
    record = _ChatRecord.model_validate_json(text)
    turns = tuple(Turn(checked_message(turn.message), turn.text, turn.value) for turn in record.turns)
    return turns, record.options, record.tools
