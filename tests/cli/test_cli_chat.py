"""`outlines-cont chat`, driven line by line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outlines_cont import Chat, samplers
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.chat import HELP, ChatSession
from tests.chat_models import PLAIN, chat_model


def _session(max_tokens: int = 6) -> tuple[ChatSession, io.StringIO]:
    out = io.StringIO()
    chat = Chat(chat_model("Qwen3"), rng=0)
    return ChatSession(chat, samplers.greedy(), max_tokens, out), out


def _told(*lines: str, max_tokens: int = 6) -> tuple[ChatSession, list[str]]:
    session, out = _session(max_tokens)
    session.run(iter(lines))
    return session, out.getvalue().splitlines()


def test_every_reply_is_followed_by_what_was_fed_and_kept() -> None:
    session, told = _told("Hi", "", "And now?")
    fed = [re.findall(r"\[(\d+) tokens fed, (\d+) kept, 6 written, cut, \d+\.\d s\]", line) for line in told]
    (first, second) = [found[0] for found in fed if found]
    assert len(session.chat) == 4
    assert int(second[1]) >= int(first[0]) + int(first[1]) - 6  # all but a reply that ends inside a character
    assert session.chat.messages[0] == {"role": "user", "content": "Hi"}
    assert "\x1b" not in "".join(told)


def test_forks_and_steps_back() -> None:
    session, told = _told("Hi", "/fork", "Two", "/fork 1", "/back", "/fork 3", "/fork 2", "/back 9", "/back x", "/oops")
    assert [line for line in told if "conversation" in line] == [
        "This is conversation 2 of 2, with 2 messages.",
        "This is conversation 1 of 2, with 2 messages.",
        "This is conversation 2 of 2, with 4 messages.",
    ]
    assert "0 messages are left." in told
    assert sum(line.startswith("Error: expected a number") for line in told) == 3
    assert "There is no /oops; /help says what there is." in told
    assert len(session.chat) == 4


def test_replies_are_json_of_a_schema_until_they_are_text_again(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    properties: dict[str, Any] = {"n": {"type": "integer", "minimum": 1, "maximum": 9}}
    file.write_text(json.dumps({"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}))
    session, told = _told(f"/schema {file}", "How many?", "/schema", "/schema nothing.json", max_tokens=30)
    assert f"Replies are JSON of {file}." in told
    assert json.loads(session.chat.messages[-1]["content"])["n"] == session.chat.value["n"]
    assert "Replies are text." in told
    assert told[-1].startswith("Error: ")


def test_a_conversation_is_written_and_read(tmp_path: Path) -> None:
    name = str(tmp_path / "talk")
    session, told = _told("Hi", f"/save {name}", "More", f"/load {name}", "/show", "/save", "/load", "/help", "/quit", "x")
    assert len(session.chat) == 2
    assert "2 messages." in told
    assert "user: Hi" in told
    assert told[-len(HELP.splitlines()) :] == HELP.splitlines()
    assert sum(line.startswith("Error: expected a file") for line in told) == 2
    _, told = _told(f"/load {tmp_path / 'missing'}", f"/save {tmp_path}", "/system", "/system Be short.", "/show")
    assert [line.startswith("Error: ") for line in told] == [True, True, True, False, False]
    assert told[-1] == "system: Be short."
    assert "that /save has written" in told[0]
    assert "state.save" not in told[0]


def test_an_interrupt_ends_a_reply_and_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    session, out = _session(max_tokens=50)

    def interrupted(text: str) -> int:
        if text and not text.startswith("\n"):
            raise KeyboardInterrupt
        return len(text)

    monkeypatch.setattr(out, "write", interrupted)
    session._reply(session.chat.user("Hi"))
    assert len(session.chat) == 2
    assert session.chat.finish_reason == "length"


def test_the_bundled_model_reads_messages() -> None:
    message = "Please send 12 desk lamps to Porto."
    result = CliRunner().invoke(app, ["chat", "--max-tokens", "80"], input=f"{message}\n/back\n{message}\n")
    assert result.exit_code == 0, result.output
    first, second = re.findall(r"^(\{.*)\n\[(\d+) tokens fed, (\d+) kept", result.stdout, re.MULTILINE)
    assert first[0] == second[0]
    assert int(second[1]) < int(first[1])
    assert int(second[2]) > int(first[2])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--template", "missing.jinja"], "cannot be read"), (["--sampler", "nucleus"], "--sampler"), (["nofolder"], "nofolder")],
)
def test_what_cannot_begin_says_why(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["chat", *arguments], input="")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Give a hub id" not in result.stderr


def test_a_template_of_ones_own_and_a_system_message(tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text(PLAIN)
    options = ["--template", str(tmp_path / "plain.jinja"), "--system", "Be short.", "--max-tokens", "1"]
    result = CliRunner().invoke(app, ["chat", *options], input="Hi\n/show\n")
    assert "system: Be short.\nuser: Hi\nassistant:" in result.stdout


def test_a_terminal_has_a_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from outlines_cont.cli import chat as module

    typed: Iterator[Any] = iter(["Hi", KeyboardInterrupt(), "/quit"])

    def answer(prompt: str) -> str:
        item = next(typed, EOFError())
        if isinstance(item, BaseException):
            raise item
        assert prompt == "> "
        return str(item)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(module.sys.stdin, "isatty", lambda: True, raising=False)
    assert list(module.terminal_lines()) == ["Hi", "/quit"]
    assert capsys.readouterr().out == "\n"
