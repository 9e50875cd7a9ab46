"""Measure the bundled model on held-out messages, through the public names of the library.

Run from the repository's root: `python -m scripts.tiny.evaluate --count 500`. Two sets of messages are drawn, with names
and places that training never shows, and read greedily:

- *demo*: messages that tell every fact of the demo's record; kind, record and due date are chained on one state;
- *other*: messages of every kind, each asked for a record of its own drawn schema, straight from the message; kind and due
  date are chained on a second state.

A field is right when its JSON value equals the expected one, a record when all of its fields are. Values inside objects and
arrays count one by one.
"""

import argparse
import json
import platform
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from outlines_cont import continuous, generate, models
from outlines_cont.continuation import Continuation
from outlines_cont.models import HuggingFaceModel
from outlines_cont.state import SequenceState
from scripts.tiny.corpus import DEMO_KINDS, DUE_PATTERN, KINDS, Message, MessageSource, Task, demo_task, draw_task

BATCH_SIZE = 16
MAX_TOKENS = 400


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
        bad = {path: (want, received.get(path)) for path, want in expected.items() if want != received.get(path)}
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
        self._kind = continuous(generate.choice(model, KINDS))
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

    def _json(self, schema: dict[str, Any]) -> Continuation:
        return continuous(generate.json(self._model, schema, whitespace="none"))


def evaluate(model: HuggingFaceModel, count: int, seed: int, console: Console) -> dict[str, Any]:
    """Return the figures of `count` messages of each set, and the wrong answers."""
    evaluation = Evaluation(model, seed)
    started = time.monotonic()
    with Progress(console=console, transient=True) as progress:
        for name, read in (("demo", evaluation.demo), ("other", evaluation.other)):
            task = progress.add_task(name, total=count)
            for begin in range(0, count, BATCH_SIZE):
                size = min(BATCH_SIZE, count - begin)
                read(size)
                progress.advance(task, size)
    return {
        "messages": {"demo": count, "other": count},
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
    parser.add_argument("--count", type=int, default=500, help="messages in each of the two sets (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the messages (default: 0)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="also print the first N wrong answers")
    args = parser.parse_args()
    console = Console(stderr=args.json)
    model = models.transformers(str(args.model)) if args.model else models.tiny()
    result = evaluate(model, args.count, args.seed, console)
    if args.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print_table(result, args.show, console)


if __name__ == "__main__":
    main()
