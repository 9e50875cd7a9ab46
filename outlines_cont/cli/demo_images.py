"""`show_image_demo`: draws twenty receipts, reads them in one batch with the bundled vision model or another, compares the records
with what was drawn, and prints a table of at most 80 columns; writes a line of JSON for each, and a page with the wrong values and their
pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlines_cont import continuous, generate
from outlines_cont.cli.model import load_model
from outlines_cont.cli.options import DemoOptions
from outlines_cont.cli.receipts import demo_receipts
from outlines_cont.models.hugging_face import HuggingFaceModel
from outlines_cont.models.image_file import thumbnail
from outlines_cont.pipelines.outcome import SetupError
from outlines_cont.pipelines.report import Report, write_page

NUM_RECEIPTS = 20
PROMPT = "<image>\nRecord: "
_MAX_TOKENS = 250
_WIDTH = 80
_TITLE = "Receipts that were drawn, and read"
Name = Annotated[str, Field(max_length=40)]


class Receipt(BaseModel):
    """The record that the demo reads from a picture."""

    shop: Name
    place: Name
    date: date
    total: Annotated[float, Field(ge=0, le=100_000)]
    currency: Literal["EUR", "USD", "GBP", "CHF"]


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """A picture that was read.

    Attributes:
        picture: the image of PIL.
        expected: what was drawn, as JSON.
        record: what was read, as JSON; None if it failed.
        error: why it failed, else None.
    """

    picture: Any
    expected: dict[str, Any]
    record: dict[str, Any] | None
    error: Exception | None

    @property
    def right(self) -> list[str]:
        """The fields that were read as they were drawn."""
        return [name for name, value in self.expected.items() if self.record is not None and self.record[name] == value]

    def line(self, number: int) -> dict[str, Any]:
        """Return the line of the output."""
        found: dict[str, Any] = {"receipt": number, "expected": self.expected, "record": self.record}
        if self.error is not None:
            found["error"] = {"type": type(self.error).__name__, "message": str(self.error)}
        return found


def read_receipts(model: HuggingFaceModel, seed: int, count: int) -> list[ReadReceipt]:
    """Draw receipts, and return what a model reads in them, in one batch.

    Raises `UnsupportedModel` if the model takes no images. Cost: with the bundled vision model some 0.1 s of processor time for each.
    """
    drawn = demo_receipts(seed, count)
    pictures = [picture for _, picture in drawn]
    states = model.see([PROMPT] * count, images=[[picture] for picture in pictures])
    states = continuous(generate.json(model, Receipt, whitespace="none"))(states, max_tokens=_MAX_TOKENS)
    rows = []
    for index, (receipt, picture) in enumerate(drawn):
        facts = {name: receipt.record[name] for name in Receipt.model_fields} | {
            "total": float(receipt.record["total"])
        }
        value, error = states.values[index][0], states.errors[index][0]
        rows.append(ReadReceipt(picture, facts, None if value is None else value.model_dump(mode="json"), error))
    return rows


def show_image_demo(options: DemoOptions, file: TextIO) -> bool:
    """Run the demo, print its table and summary, and write the records to `file`; return whether no picture has failed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise SetupError(
            "expected pillow for --images, which is not installed: `pip install 'outlines-cont[images]'`"
        ) from error
    model = load_model(options.model, None, None, is_of_images=True)
    started = time.monotonic()
    with model.meter() as meter:
        rows = read_receipts(model, 0, NUM_RECEIPTS)
    seconds = time.monotonic() - started
    Console(width=_WIDTH).print(table_of(rows))
    for number, row in enumerate(rows, 1):
        file.write(json.dumps(row.line(number), ensure_ascii=False) + "\n")
    _print_summary(rows, seconds, meter.images)
    typer.echo(f"Records: {options.output}")
    if options.report is not None:
        _write_report(rows, options.report)
        typer.echo(f"Report: {options.report}")
    return all(row.error is None for row in rows)


def table_of(rows: Sequence[ReadReceipt]) -> Table:
    """Return a table of what was read: a wrong value is followed by the right one in brackets."""
    table = Table("", "Shop", "Place", "Date", "Total", "", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, row in enumerate(rows, 1):
        if row.record is None:
            table.add_row(str(number), Text(f"{type(row.error).__name__}: {row.error}", style="red"))
            continue
        table.add_row(str(number), *(_cell(row, name) for name in row.expected))
    return table


def _cell(row: ReadReceipt, name: str) -> Text:
    assert row.record is not None
    read, drawn = (
        f"{value:.2f}" if name == "total" else str(value) for value in (row.record[name], row.expected[name])
    )
    return Text(read) if name in row.right else Text(f"{read} [{drawn}]", style="red")


def _print_summary(rows: Sequence[ReadReceipt], seconds: float, num_images: int) -> None:
    fields = sum(len(row.expected) for row in rows)
    right, whole = sum(len(row.right) for row in rows), sum(len(row.right) == len(row.expected) for row in rows)
    if right < fields:
        typer.echo("In brackets: what was drawn, if something else was read.")
    typer.echo(
        f"{right} of {fields} fields right, {whole} of {len(rows)} records; {num_images} pictures seen, {seconds:.1f} s"
    )


def _write_report(rows: Sequence[ReadReceipt], path: Path) -> None:
    report = Report(gold="expected")
    for number, row in enumerate(rows, 1):
        report.add({"_line": number} | {name: value for name, value in row.line(number).items() if value is not None})
    report.thumbnails = {number: [thumbnail(rows[number - 1].picture)] for number in report.shown_lines}
    write_page(report, path, _TITLE)
