"""Measure the bundled vision model on pictures that training never shows, through the public names of the library.

    python -m scripts.tiny_vision.evaluate --fonts FONTS --count 200

Three sets of receipts are drawn, all with names of shops and places that training never shows:

- *demo*: the words of `outlines-cont demo --images`, in pillow's font, which training has;
- *words*: held-out words, in seven fonts of training;
- *fonts*: held-out words, in families of fonts that training never shows.

Records are written greedily by `generate.json`; single facts are asked for on the same state. A field is right when its value equals the
one that was drawn, a record when all of its fields are.
"""

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from outlines_cont import continuous, generate, models
from outlines_cont.cli.demo_images import PROMPT, Receipt
from outlines_cont.cli.receipts import default_font, demo_receipts
from outlines_cont.models import HuggingFaceModel
from scripts.tiny_vision.documents import DocumentSource
from scripts.tiny_vision.fonts import COMMON, HELD_OUT, Fonts
from scripts.tiny_vision.words import ReceiptWords

BATCH_SIZE = 20
MAX_TOKENS = 250
SETS = ("demo", "words", "fonts")


def pictures_of(name: str, folder: Path, count: int, seed: int) -> list[tuple[dict[str, Any], Any, str]]:
    """Return records, pictures and names of fonts of one set."""
    if name == "demo":
        return [
            (receipt.record, picture, default_font(12.0).getname()[0])
            for receipt, picture in demo_receipts(seed + 1000, count)
        ]
    fonts = Fonts(folder, COMMON, False) if name == "words" else Fonts(folder, HELD_OUT, False)
    source = DocumentSource(ReceiptWords(True), fonts, random.Random(f"evaluate {name} {seed}"))
    found = []
    for _ in range(count):
        receipt, placed, style = source.draw_receipt()
        found.append((receipt.record, style.draw_placed(placed), style.font(12.0).getname()[0]))
    return found


class Tally:
    """Right answers and all answers by name, and the wrong ones."""

    def __init__(self) -> None:
        self.right, self.total = Counter[str](), Counter[str]()
        self.wrong: list[tuple[str, Any, Any]] = []

    def add(self, name: str, expected: Any, received: Any) -> None:
        """Count an answer."""
        self.total[name] += 1
        self.right[name] += expected == received
        if expected != received:
            self.wrong.append((name, expected, received))


def measure(model: HuggingFaceModel, rows: list[tuple[dict[str, Any], Any, str]], tally: Tally) -> None:
    """Read pictures in batches, and count."""
    record = continuous(generate.json(model, Receipt, whitespace="none"))
    total = continuous(generate.regex(model, r"[0-9]{1,5}\.[0-9]{2}"))
    day = continuous(generate.regex(model, r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"))
    for begin in range(0, len(rows), BATCH_SIZE):
        part = rows[begin : begin + BATCH_SIZE]
        states = model.see([PROMPT.partition("\n")[0]] * len(part), images=[[picture] for _, picture, _ in part])
        read = record(states + "\nRecord: ", max_tokens=MAX_TOKENS).values
        totals, days = total(states + "\nTotal: ").values, day(states + "\nDate: ").values
        for (facts, _, font), (value,), (amount,), (one,) in zip(part, read, totals, days, strict=True):
            expected = {name: facts[name] for name in Receipt.model_fields} | {"total": float(facts["total"])}
            received = {} if value is None else value.model_dump(mode="json")
            for name in expected:
                tally.add(name, expected[name], received.get(name))
                tally.add("all fields", expected[name], received.get(name))
            tally.add("records", expected, received)
            tally.add(f"records, {font}", expected, received)
            tally.add("a question: total", facts["total"], amount)
            tally.add("a question: date", facts["date"], one)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of another model (default: the bundled one)")
    parser.add_argument("--fonts", type=Path, required=True, help="folder with font files, at any depth")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS, help="which sets (default: all)")
    parser.add_argument("--count", type=int, default=200, help="pictures in each set (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the pictures (default: 0)")
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="also print the first N wrong fields of each set"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = models.transformers(str(args.model), dtype="float32") if args.model else models.tiny_vision()
    console = Console()
    for name in args.sets:
        rows, tally, started = pictures_of(name, args.fonts, args.count, args.seed), Tally(), time.process_time()
        measure(model, rows, tally)
        table = Table(
            "answers",
            "right",
            "of",
            title=f"{name}: {args.count} pictures, {time.process_time() - started:.0f} s",
        )
        for answer in tally.total:
            table.add_row(answer, f"{tally.right[answer] / tally.total[answer]:.1%}", str(tally.total[answer]))
        console.print(table)
        for answer, expected, received in [one for one in tally.wrong if one[0] in Receipt.model_fields][: args.show]:
            console.print(f"{answer}: {json.dumps(expected)} was read as {json.dumps(received)}", markup=False)


if __name__ == "__main__":
    main()
