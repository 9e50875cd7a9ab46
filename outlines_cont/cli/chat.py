"""`ChatSession`: the interactive chat of `outlines-cont chat`: a loop of messages and commands (`/fork`, `/back`, `/schema`, `/save` and so
on) over immutable `Chat` values, which prints how many tokens each reply fed and reused. Ctrl-C cuts a reply; control characters other than
line ends are replaced by visible signs.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import typer

from outlines_cont import generate
from outlines_cont.chat import Chat
from outlines_cont.checks import file_text
from outlines_cont.cli.model import load_model, make_sampler
from outlines_cont.cli.options import ChatOptions
from outlines_cont.errors import OutlinesContError
from outlines_cont.generate import Generator
from outlines_cont.models.hugging_face import HuggingFaceModel
from outlines_cont.pipelines.outcome import OutputError, SetupError
from outlines_cont.pipelines.record_schema import load_schema

HELP = """\
/schema FILE   replies are JSON of this schema (FILE.json or module:Class); without FILE they are text again
/fork          a second conversation with the same beginning; /fork N goes to conversation N
/back [N]      take back your last message, or the last N, with what came after
/system TEXT   start again, with a system message
/save FILE     write the conversation, with its keys and values; /load FILE reads it
/image FILE    your next message begins with this image
/show          the whole conversation
/help          this
/quit          leave; so does the end of the input
Anything else is said to the model. Ctrl-C ends a reply, which keeps what was written."""

_SIGNS = {"\n": "\n", "\t": "→", "\r": "←", "\u200d": "\u200d"}
_CONTROLS = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def talk(options: ChatOptions) -> None:
    """Answer the lines of the standard input."""
    sampler = make_sampler(options.sampler)
    model = load_model(
        options.model, options.device, options.dtype, fused=options.fused, deterministic=options.deterministic
    )
    begun = begun_chat(model, options.template, options.system, options.seed)
    if sys.stdin.isatty():
        typer.echo("Type a message, or /help.")
    session = ChatSession(begun, sampler, options.max_tokens, sys.stdout)
    for image in options.image or ():
        session.add_image(str(image))
    session.run(terminal_lines())


class ChatSession:
    """One conversation, or several by `/fork`, with a model; all output is written to `out`."""

    def __init__(self, chat: Chat, sampler: Any, max_tokens: int, out: TextIO) -> None:
        self._first = chat
        self._chats = [chat]
        self._at = 0
        self._sampler = sampler
        self._max_tokens = max_tokens
        self._images: list[Any] = []  # of the next message
        self._out = out
        self._writer: Generator = generate.text(chat.model, sampler=sampler)
        self._commands: dict[str, Callable[[str], None]] = {
            "schema": self._schema,
            "fork": self._fork,
            "back": self._back,
            "system": self._system,
            "save": self._save,
            "load": self._load,
            "image": self._image,
            "show": lambda rest: self._say(str(self.chat) or "nothing was said yet"),
            "help": lambda rest: self._say(HELP),
        }

    @property
    def chat(self) -> Chat:
        """The current conversation."""
        return self._chats[self._at]

    def run(self, lines: Iterator[str]) -> None:
        """Answer line by line, up to the end or `/quit`. Errors are printed, and the conversation stays as it was."""
        for line in lines:
            text = line.strip()
            if text == "/quit":
                return
            try:
                self._answer(text)
            except (OutlinesContError, ValueError, OSError) as error:
                self._say(f"Error: {' '.join(str(error).split())}")

    def _answer(self, text: str) -> None:
        name, _, rest = text.removeprefix("/").partition(" ")
        if not text:
            return
        if not text.startswith("/"):
            self._reply(self.chat.user([*self._images, text] if self._images else text))
            self._images.clear()
        elif name in self._commands:
            self._commands[name](rest.strip())
        else:
            self._say(f"There is no {text.split()[0]}; /help says what there is.")

    def _reply(self, asked: Chat) -> None:
        started = time.monotonic()
        stream = asked.stream(self._writer, max_tokens=self._max_tokens)
        model: Any = asked.model
        with model.meter() as meter:
            try:
                for event in stream:
                    self._out.write(_visible(event.text))
                    self._out.flush()
            except KeyboardInterrupt:
                stream.close()
        self._chats[self._at] = chat = stream.chat
        cut = ", cut" if chat.finish_reason == "length" else ""
        self._say(
            f"\n[{meter.fed_tokens} tokens fed, {meter.reused_tokens} kept, {meter.sampled_tokens + meter.forced_tokens} written{cut}, "
            f"{time.monotonic() - started:.1f} s]"
        )

    def _schema(self, source: str) -> None:
        if not source:
            self._writer = generate.text(self.chat.model, sampler=self._sampler)
            self._say("Replies are text.")
            return
        self._writer = generate.json(self.chat.model, load_schema(source).schema, sampler=self._sampler)
        self._say(f"Replies are JSON of {source}.")

    def _fork(self, number: str) -> None:
        if number:
            if not number.isdecimal() or not 1 <= int(number) <= len(self._chats):
                raise SetupError(f"expected a number from 1 to {len(self._chats)} after /fork, got {number!r}")
            self._at = int(number) - 1
        else:
            self._chats.append(self.chat)
            self._at = len(self._chats) - 1
        self._say(f"This is conversation {self._at + 1} of {len(self._chats)}, with {len(self.chat)} messages.")

    def _back(self, number: str) -> None:
        if number and not number.isdecimal():
            raise SetupError(f"expected a number after /back, got {number!r}")
        self._chats[self._at] = self.chat.back(int(number or 1))
        self._say(f"{len(self.chat)} messages are left.")

    def _system(self, text: str) -> None:
        _check_given(text, "a text after /system, how the model is to behave")
        self._chats[self._at] = self._first[:0].system(text)
        self._say("A new conversation.")

    def _save(self, name: str) -> None:
        _check_given(name, "a file after /save")
        try:
            self.chat.save(name)
        except OSError as error:
            raise OutputError(f"expected to write the conversation, but {name!r} cannot be written: {error}") from error
        self._say(f"Written to {name}, {Path(name).stat().st_size / 1e6:.1f} MB.")

    def _load(self, name: str) -> None:
        _check_given(name, "a file after /load")
        if not Path(name).is_file():
            raise SetupError(f"expected a file after /load that /save has written, but there is none at {name!r}")
        self._chats[self._at] = Chat.load(name, self.chat.model, template=self.chat.template)
        self._say(f"{len(self.chat)} messages.")

    def _image(self, name: str) -> None:
        _check_given(name, "a file after /image")
        self.add_image(name)
        self._say(f"{name} is part of your next message.")

    def add_image(self, name: str) -> None:
        """Let the next message begin with an image; `ImageError` if it cannot be read, `UnsupportedModel` if the model takes none."""
        self._images.append({"type": "image", "image": self.chat.model.read_image(name)})

    def _say(self, text: str) -> None:
        self._out.write(_visible(text) + "\n")
        self._out.flush()


def _check_given(text: str, expected: str) -> None:
    if not text:
        raise SetupError(f"expected {expected}")


def terminal_lines() -> Iterator[str]:
    """Yield typed lines, with a prompt and a history, on a terminal, else the lines of the standard input."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):  # as on Windows
        import readline  # noqa: F401  # it gives `input` a history
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")


def begun_chat(model: HuggingFaceModel, template: Path | None, system: str | None, seed: int) -> Chat:
    """Return a conversation without messages of the user; raise `NoChatTemplate` if the model has no template and none is given."""
    source = file_text(template, "as --template", SetupError) if template is not None else None
    chat = Chat(model, template=source, rng=seed)
    return chat.system(system) if system else chat


def _visible(text: str) -> str:
    """Return a text with signs for control characters other than line ends, and for marks of the direction of writing."""
    return "".join(_SIGNS.get(c) or ("�" if unicodedata.category(c) in _CONTROLS else c) for c in text)
