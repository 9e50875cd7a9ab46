"""Training documents: a message with several continuations of it, in neat, in wider, and in chat form."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from scripts.tiny.corpus import DEMO_KINDS, Message, MessageSource, demo_task, draw_task


class Piece(NamedTuple):
    """One generated piece.

    Attributes:
        appended: The text before it, which is given.
        text: What is to be generated.
        name: What it is, for measuring: `demo`, `other`, `reading`, `wide`, `kind`, `due`, or a piece of a chat.
    """

    appended: str
    text: str
    name: str


@dataclass(frozen=True, slots=True)
class Document:
    """A message and several independent continuations of it.

    Args:
        prompt: What comes first, such as `Message: ` and the text.
        branches: For each continuation its pieces, one after the other.
    """

    prompt: str
    branches: tuple[tuple[Piece, ...], ...]


_KIND, _RECORD, _DUE = "\nKind: ", "\nRecord: ", "\nDue: "
_CHAINS = (
    *[(_KIND, _RECORD, _DUE)] * 7,
    *[(_RECORD,)] * 10,
    (_KIND, _DUE),
    (_DUE,),
    (_KIND, _RECORD),
    (_RECORD, _DUE),
    (_DUE, _RECORD),
    (_DUE, _KIND),
)


def chain(rng: random.Random, message: Message, record: str, name: str) -> tuple[Piece, ...]:
    """Return the pieces of a drawn chain about `message`; no due date is asked for where it tells none."""
    steps = [step for step in rng.choice(_CHAINS) if step != _DUE or "due" in message.facts] or [_RECORD]
    pieces = {_KIND: (message.kind, "kind"), _RECORD: (record, name), _DUE: (str(message.facts.get("due")), "due")}
    return tuple(Piece(step, *pieces[step]) for step in steps)


def neat_documents(rng: random.Random, held_out: bool = False) -> Iterator[Document]:
    """Yield documents about the messages of `corpus`, without end."""
    source = MessageSource(held_out)
    while True:
        complete = rng.random() < 0.7
        message = source.draw(rng, rng.choice(DEMO_KINDS) if complete else None, complete)
        branches = []
        for index in range(rng.choice((2, 3, 3))):
            is_demo = complete and index == 0
            task = demo_task(message) if is_demo else draw_task(rng, message)
            branches.append(chain(rng, message, task.text, "demo" if is_demo else "other"))
        yield Document("Message: " + message.text, tuple(branches))
