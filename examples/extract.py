"""Read your own records out of your own texts: one pydantic model, one batch.

The same from the command line, in this folder: `outlines-cont extract messages.txt --schema extract:Order`.
"""

from datetime import date
from pathlib import Path

from pydantic import BaseModel

from outlines_cont import generate, models


class Order(BaseModel):
    name: str
    city: str
    item: str
    quantity: int
    due_date: date


def main() -> None:
    model = models.tiny()  # or models.transformers("a hub id or a folder")
    read = generate.json(model, Order, whitespace="none")
    messages = (Path(__file__).parent / "messages.txt").read_text(encoding="utf-8").splitlines()

    orders: list[Order] = read([f"Message: {message}\nRecord: " for message in messages], max_tokens=100)
    for order in orders:
        print(order.model_dump_json())


if __name__ == "__main__":
    main()
