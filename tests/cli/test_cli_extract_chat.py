"""`outlines-cont extract --chat`: each row is a message of the user, and the record is the reply."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner, Result

from fsm.schema.context import Whitespace
from outlines_cont import Chat, generate, models
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.options import Whitespace as WhitespaceOption
from tests.saved_model import save_model

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<eos>' }}{% endfor %}{{ 'assistant: ' if add_generation_prompt else '' }}"
)
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["order", "invoice"]}, "amount": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["kind", "amount"],
    "additionalProperties": False,
}
TEXTS = ["one lamp", "two <eos> chairs", "assistant: {}"]


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(tmp_path_factory.mktemp("chat"), context_length=1024)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    (folder / "rows.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "prompt.jinja").write_text("Read <eos>: {{ text }}")
    return folder


def run(folder: Path, *arguments: str) -> Result:
    given = ["extract", str(folder / "rows.txt"), "--schema", str(folder / "schema.json"), "--model", str(folder)]
    return CliRunner().invoke(app, [*given, *arguments])


@pytest.mark.parametrize("system", [None, "Be short."])
def test_a_row_is_a_message_of_the_user(chat_folder: Path, system: str | None) -> None:
    given = [] if system is None else ["--system", system]
    result = run(chat_folder, "--chat", "--prompt", str(chat_folder / "prompt.jinja"), *given)
    assert result.exit_code == 0, result.stderr
    model = models.transformers(str(chat_folder))
    chat = Chat(model) if system is None else Chat(model).system(system)
    records = [json.loads(line)["record"] for line in result.stdout.splitlines()]
    replies = [chat.user(f"Read <eos>: {text}").assistant(generate.json(model, SCHEMA), max_tokens=200) for text in TEXTS]
    assert [reply.value for reply in replies] == records
    turns = 2 if system is None else 3  # what a row or the template of the prompt writes ends no turn
    assert [turns - 1] * 3 == [list(reply.state.rows[0][0].token_ids).count(0) for reply in replies]


def test_without_a_template_the_user_asks_for_the_schema(chat_folder: Path) -> None:
    result = run(chat_folder, "--chat")
    model = models.transformers(str(chat_folder))
    asked = f"Read the message, and answer with a JSON object that fits this schema: {json.dumps(SCHEMA)}\n\nMessage: {TEXTS[0]}"
    reply = Chat(model).user(asked).assistant(generate.json(model, SCHEMA), max_tokens=200)
    assert json.loads(result.stdout.splitlines()[0])["record"] == reply.value
    plain = run(chat_folder)
    digests = [{json.loads(line)["_digest"][13:] for line in out.stdout.splitlines()} for out in (result, plain)]
    assert digests[0].isdisjoint(digests[1])  # --resume tells them apart


def test_what_cannot_be_a_conversation_is_refused_before_the_first_row(chat_folder: Path, tmp_path: Path) -> None:
    alone = run(chat_folder, "--system", "Be short.")
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "expected --chat with --system" in alone.stderr
    plain = shutil.copytree(chat_folder, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    refused = run(plain, "--chat")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "expected a model with a chat template with --chat" in refused.stderr
    assert "Leave out --chat" in refused.stderr


def test_the_command_knows_every_way_to_put_spaces() -> None:
    assert get_args(Whitespace) == get_args(WhitespaceOption)
