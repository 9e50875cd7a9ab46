"""What is told to the model beside the messages, for templates that write messages of the system, refuse them or leave them out."""

from __future__ import annotations

import pytest

from outlines_cont import Chat, generate
from outlines_cont.chats.message import with_instruction
from tests.chat_models import PLAIN, chat_model

REFUSES = PLAIN.replace(
    "{%- for m in messages -%}", "{%- for m in messages -%}{%- if m.role == 'system' -%}{{ raise_exception('no') }}{%- endif -%}"
)
OMITS = PLAIN.replace("{%- for m in messages -%}", "{%- for m in messages if m.role != 'system' -%}")
FORM = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}


def now() -> str:
    """Tell the time."""
    return "Noon."


@pytest.mark.parametrize(("template", "role"), [(PLAIN, "system"), (REFUSES, "user"), (OMITS, "user")], ids=["writes", "refuses", "omits"])
def test_tools_and_schemas_are_told_by_a_message_that_the_template_writes(template: str, role: str) -> None:
    model = chat_model("plain")
    told = str(Chat(model, template=template, tools=[now]).user("Hi").state)
    assert told.startswith(f"{role}: You may call these functions:\n")
    assert "Hi\nassistant: " in told
    reply = Chat(model, template=template).user("Hi").assistant(generate.json(model, FORM, show_schema=True))
    assert str(reply.state).startswith(f"{role}: Answer with JSON of this form:\n")
    assert reply.value == {"a": 1}
    later = reply.user("Again.").assistant(generate.json(model, FORM, show_schema=True))
    assert str(later.state).count("Answer with JSON") == 1


def test_an_instruction_stands_beside_texts_and_parts() -> None:
    parts = [{"type": "text", "text": "Hi"}]
    asked = {"role": "user", "content": parts}
    assert with_instruction([asked], "A", has_system=False) == [{"role": "user", "content": [{"type": "text", "text": "A"}, *parts]}]
    assert with_instruction([{"role": "developer", "content": "B"}, asked], "A")[0] == {"role": "developer", "content": "B\n\nA"}
    assert [message["role"] for message in with_instruction([asked], "A")] == ["system", "user"]
    assert asked == {"role": "user", "content": [{"type": "text", "text": "Hi"}]}


@pytest.mark.parametrize("kind", ["Qwen3", "plain", "Llama 3"])
def test_a_developer_is_the_system_of_a_template_that_does_not_know_him(kind: str) -> None:
    chats = [Chat(chat_model(kind)).message({"role": role, "content": "Be kind."}).user("Hi") for role in ("system", "developer")]
    assert str(chats[0].state) == str(chats[1].state)
