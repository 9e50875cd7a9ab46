"""The mixture that the bundled model is trained on: neat messages, messages in many styles, conversations."""

import random
from collections.abc import Iterator

from scripts.tiny.chats import Conversations
from scripts.tiny.corpus import DEMO_KINDS, Message, MessageSource, Task, demo_task, draw_task
from scripts.tiny.documents import Document, chain, neat_documents
from scripts.tiny.wide import WideSource, reading_task, wide_task

SHARES = {"neat": 0.33, "wide": 0.54, "chat": 0.13}
"""How much of each is drawn."""


def wide_documents(rng: random.Random, held_out: bool = False) -> Iterator[Document]:
    """Yield documents about messages in many styles, without end."""
    source = WideSource(held_out)
    while True:
        message = source.draw(rng, complete=rng.random() < 0.35)
        tasks = [_wide_task(rng, message, index) for index in range(rng.choice((2, 3)))]
        yield Document("Message: " + message.text, tuple(chain(rng, message, t.text, t.name) for t in tasks))


def chat_documents(rng: random.Random, held_out: bool = False) -> Iterator[Document]:
    """Yield conversations without end."""
    wide, neat, talk = WideSource(held_out), MessageSource(held_out), Conversations(held_out)
    while True:
        if rng.random() < 0.75:
            message = wide.draw(rng, complete=rng.random() < 0.35)
            tasks = [_wide_task(rng, message, index) for index in range(2)]
        else:
            message = neat.draw(rng)
            tasks = [draw_task(rng, message) for _ in range(2)]
        if rng.random() < 0.08:
            yield talk.small_talk(rng, message, tasks[0])
        else:
            yield talk.document(rng, message, tasks)


def _wide_task(rng: random.Random, message: Message, index: int) -> Task:
    names = {"person", "city", "item", "quantity", "price", "currency"}
    if index == 0 and message.kind in DEMO_KINDS and names <= set(message.facts) and rng.random() < 0.3:
        return demo_task(message)
    return reading_task(rng, message) if index == 0 and rng.random() < 0.75 else wide_task(rng, message)


def documents(rng: random.Random, held_out: bool = False) -> Iterator[Document]:
    """Yield documents of the mixture without end."""
    sources = {"neat": neat_documents, "wide": wide_documents, "chat": chat_documents}
    drawn = {name: source(random.Random(rng.random()), held_out) for name, source in sources.items()}
    while True:
        yield next(drawn[rng.choices(list(SHARES), list(SHARES.values()))[0]])
