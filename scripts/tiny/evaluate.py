"""Measure the bundled model on held-out messages, through the public names of the library.

Run from the repository's root: `python -m scripts.tiny.evaluate --count 500`. Four sets of messages are drawn, with names
and places that training never shows, and read greedily:

- *demo*: messages that tell every fact of the demo's record; kind, record and due date are chained on one state;
- *other*: messages of every kind, each asked for a record of its own drawn schema, straight from the message; kind and due
  date are chained on a second state;
- *wide*: messages in many styles, some of kind `other`, each asked for the demo's record with the due date, null where it
  is not told;
- *chat*: the same in the chat form, the record in the first turn, the kind in the second, the due date, where there is one,
  in the third.

A field is right when its JSON value equals the expected one, a record when all of its fields are. Values inside objects and
arrays count one by one.
"""

import argparse
import json
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outlines_cont import Chat, SequenceState, continuous, generate, models
from outlines_cont.continuation import Continuation
from outlines_cont.models import HuggingFaceModel
from scripts.tiny.corpus import DEMO_KINDS, DUE_PATTERN, KINDS, Message, MessageSource, Task, demo_task, draw_task
from scripts.tiny.wide import OTHER, WideSource, full_reading

BATCH_SIZE = 16
MAX_TOKENS = 400
SETS = ("demo", "other", "wide", "chat")


@dataclass(slots=True)
class Tally:
    """Right answers and all answers, by name; and the wrong ones, to read."""

    right: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, is_right: bool) -> None:
        """Count one answer."""
        self.total[name] += 1
        self.right[name] += is_right

    def record(self, prefix: str, detail: str, message: Message, task: Task, value: Any) -> None:
        """Count the fields and the whole of one record, in all and under `detail`."""
        expected, received = dict(leaves(task.record)), dict(leaves(value))
        bad = {
            path: (want, received.get(path))
            for path, want in expected.items()
            if path not in received or want != received[path]
        }
        for path in expected:
            self.add(f"{prefix} fields", path not in bad)
            self.add(f"{prefix} fields, {detail}", path not in bad)
        self.add(f"{prefix} records", value == task.record)
        self.add(f"{prefix} records, {detail}", value == task.record)
        if value != task.record:
            self.wrong.append({"text": message.text, "expected": task.record, "received": value})

    def answer(self, name: str, message: Message, expected: str, received: Any) -> None:
        """Count a kind or a due date, in all and by kind of message."""
        self.add(name, expected == received)
        self.add(f"{name}, {message.kind}", expected == received)
        if expected != received:
            self.wrong.append({"text": message.text, "expected": expected, "received": received})

    def shares(self) -> dict[str, float]:
        """Return the share of right answers for every name."""
        return {name: round(self.right[name] / self.total[name], 4) for name in sorted(self.total)}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for everything in a JSON value that is neither object nor array."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}/{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}/{index}")
    else:
        yield path, value


def values_of(state: SequenceState) -> list[Any]:
    """Return the value of every row; None where it was cut or failed."""
    return [value for row in state.values for value in row]


class Evaluation:
    """Both sets of messages, with the generators that they share.

    Args:
        model: What is measured.
        seed: Of the messages.
    """

    def __init__(self, model: HuggingFaceModel, seed: int) -> None:
        self._model = model
        self._rng = random.Random(f"evaluate {seed}")
        self._source = MessageSource(held_out=True)
        self._wide_rng = random.Random(f"evaluate wide {seed}")
        self._wide_source = WideSource(held_out=True)
        self._kind = continuous(generate.choice(model, (*KINDS, OTHER)))
        self._due = continuous(generate.regex(model, DUE_PATTERN))
        self.tally = Tally()

    def demo(self, count: int) -> None:
        """Read `count` messages as the demo does."""
        messages = [self._source.draw(self._rng, self._rng.choice(DEMO_KINDS), complete=True) for _ in range(count)]
        tasks = [demo_task(message) for message in messages]
        state = self._kind([f"Message: {message.text}\nKind: " for message in messages], max_tokens=MAX_TOKENS)
        kinds = values_of(state)
        state = self._json(tasks[0].schema)(state + "\nRecord: ", max_tokens=MAX_TOKENS)
        records = values_of(state)
        dues = values_of(self._due(state + "\nDue: ", max_tokens=MAX_TOKENS))
        for message, task, kind, record, due in zip(messages, tasks, kinds, records, dues, strict=True):
            self.tally.answer("kinds", message, message.kind, kind)
            self.tally.answer("due dates", message, message.due, due)
            self.tally.record("demo", message.kind, message, task, record)

    def other(self, count: int) -> None:
        """Read `count` messages of every kind, each with a schema of its own."""
        messages = [self._source.draw(self._rng) for _ in range(count)]
        state = self._kind([f"Message: {message.text}\nKind: " for message in messages], max_tokens=MAX_TOKENS)
        kinds = values_of(state)
        dues = values_of(self._due(state + "\nDue: ", max_tokens=MAX_TOKENS))
        for message, kind, due in zip(messages, kinds, dues, strict=True):
            self.tally.answer("kinds", message, message.kind, kind)
            self.tally.answer("due dates", message, message.due, due)
            task = draw_task(self._rng, message)
            state = self._json(task.schema)(f"Message: {message.text}\nRecord: ", max_tokens=MAX_TOKENS)
            self.tally.record("other", task.name, message, task, state.value)

    def wide(self, count: int) -> None:
        """Read `count` messages in many styles."""
        messages = [self._wide_source.draw(self._wide_rng) for _ in range(count)]
        tasks = [full_reading(message) for message in messages]
        kinds = values_of(
            self._kind([f"Message: {message.text}\nKind: " for message in messages], max_tokens=MAX_TOKENS)
        )
        state = self._json(tasks[0].schema)([f"Message: {m.text}\nRecord: " for m in messages], max_tokens=MAX_TOKENS)
        for message, task, kind, record in zip(messages, tasks, kinds, values_of(state), strict=True):
            self.tally.answer("wide kinds", message, message.kind, kind)
            self.tally.record("wide", message.kind, message, task, record)

    def chat(self, count: int) -> None:
        """Read `count` messages in conversations."""
        messages = [self._wide_source.draw(self._wide_rng) for _ in range(count)]
        tasks = [full_reading(message) for message in messages]
        record = generate.json(self._model, tasks[0].schema, whitespace="none")
        chats = Chat.replies([Chat(self._model).user(m.text) for m in messages], record, max_tokens=MAX_TOKENS)
        asked = [chat.user("What kind of message is it?") for chat in chats]
        sorts = Chat.replies(asked, generate.choice(self._model, (*KINDS, OTHER)), max_tokens=MAX_TOKENS)
        for message, task, chat, sort in zip(messages, tasks, chats, sorts, strict=True):
            self.tally.record("chat", "first turn", message, task, chat.value)
            self.tally.answer("chat kinds", message, message.kind, sort.value)
        dated = [(message, chat) for message, chat in zip(messages, sorts, strict=True) if "due" in message.facts]
        due = generate.regex(self._model, DUE_PATTERN)
        for (message, _), chat in zip(
            dated, Chat.replies([c.user("When is it due?") for _, c in dated], due), strict=True
        ):
            self.tally.answer("chat due dates", message, message.due, chat.value)

    def _json(self, schema: dict[str, Any]) -> Continuation:
        return continuous(generate.json(self._model, schema, whitespace="none"))


def evaluate(model: HuggingFaceModel, sets: list[str], count: int, seed: int, console: Console) -> dict[str, Any]:
    """Return the figures of `count` messages of each of `sets`, and the wrong answers."""
    evaluation = Evaluation(model, seed)
    reads: dict[str, Callable[[int], None]] = {name: getattr(evaluation, name) for name in sets}
    started = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        for name, read in reads.items():
            task = progress.add_task(name, total=count)
            for begin in range(0, count, BATCH_SIZE):
                size = min(BATCH_SIZE, count - begin)
                read(size)
                progress.advance(task, size)
    return {
        "messages": dict.fromkeys(sets, count),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "shares": evaluation.tally.shares(),
        "counts": dict(sorted(evaluation.tally.total.items())),
        "wrong": evaluation.tally.wrong,
    }


def print_table(result: dict[str, Any], num_wrong: int, console: Console) -> None:
    """Print the shares as a table, then the first wrong answers."""
    table = Table("answers", "right", "of", title=f"Held-out messages, {result['seconds']} s")
    for name, share in result["shares"].items():
        table.add_row(name, f"{share:.2%}", str(result["counts"][name]))
    console.print(table)
    for entry in result["wrong"][:num_wrong]:
        console.print_json(json.dumps(entry, ensure_ascii=False))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of another model (default: the bundled one)")
    parser.add_argument("--count", type=int, default=500, help="messages in each set (default: 500)")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS, help="which sets (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the messages (default: 0)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="also print the first N wrong answers")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    model = models.transformers(str(args.model)) if args.model else models.tiny()
    result = evaluate(model, args.sets, args.count, args.seed, console)
    if args.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print_table(result, args.show, console)


if __name__ == "__main__":
    main()
