"""Many messages to records in columns: typed, with the share of samples that agree, and a page on what to look at first.

The same on two workers: `pipelines.run(..., workers=2)`, which needs Ray.
"""

from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from outlines_cont import models, pipelines


class Order(BaseModel):
    name: str
    city: str
    item: str
    quantity: int
    due_date: date


def main() -> None:
    model = models.tiny()  # or models.transformers("a hub id or a folder")
    messages = (Path(__file__).parent / "messages.txt").read_text(encoding="utf-8").splitlines()

    extractor = pipelines.Extractor(model, Order, samples=3, max_tokens=200)
    columns = extractor({"id": list(range(len(messages))), "text": [*messages[:-1], ""]})
    for name, item, due, error, agreement in zip(
        *(columns[name] for name in ("name", "item", "due_date", "error", "agreement")), strict=True
    ):
        print(error or f"{name}: {item}, due {due}; {agreement['item']:.0%} of the samples agree on the item")

    with TemporaryDirectory() as folder:
        source, records, report = (Path(folder) / name for name in ("messages.txt", "records.parquet", "report.html"))
        source.write_text("\n".join(messages), encoding="utf-8")
        tally = pipelines.run(source, extractor, records, keep_text=True, report=report)
        print(f"{tally.rows} rows, {tally.failed} failed, {tally.reused_tokens > 0 and 'tokens were reused'}")
        print("Look at these first" in report.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
