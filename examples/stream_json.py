"""Stream a record: an object that grows, field by field, and is valid at every moment as far as it goes."""

from datetime import date

from pydantic import BaseModel

from outlines_cont import generate, models

MESSAGE = "Hello, this is Marta Keller from Porto. Please send 12 desk lamps by 2031-05-14."


class Order(BaseModel):
    name: str
    city: str
    item: str
    quantity: int
    due_date: date


def main() -> None:
    model = models.tiny()
    order = generate.json(model, Order, whitespace="none")
    num_fields = 0
    for record in order.stream(f"Message: {MESSAGE}\nRecord: ", partial=True, max_tokens=100):
        if len(record.model_fields_set) > num_fields:  # react to a field as soon as it begins
            num_fields = len(record.model_fields_set)
            print(f"{num_fields} of {len(Order.model_fields)}: {record!r}")
    print(record.due_date.strftime("due on %d.%m.%Y"))


if __name__ == "__main__":
    main()
