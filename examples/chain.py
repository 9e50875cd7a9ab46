"""Chain three generators on one state: the kind of a message, its record, its due date. No token is fed twice."""

from typing import Literal

from pydantic import BaseModel

from outlines_cont import continuous, generate, models

MESSAGE = (
    "Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR. "
    "Our last order was on 2030-11-02."
)


class Order(BaseModel):
    customer: str
    city: str
    item: str
    quantity: int
    price: float
    currency: Literal["EUR", "USD", "GBP", "JPY"]


def main() -> None:
    model = models.tiny()
    kind = continuous(generate.choice(model, ["order", "invoice", "shipment", "complaint", "quote"]))
    record = continuous(generate.json(model, Order, whitespace="none"))
    due = continuous(generate.regex(model, r"[0-9]{4}-[0-9]{2}-[0-9]{2}"))

    with model.meter() as meter:
        state = kind(f"Message: {MESSAGE}\nKind: ")
        print("kind:  ", state.value)
        state = record(state + "\nRecord: ", max_tokens=100)
        print("record:", repr(state.value))
        state = due(state + "\nDue: ")
        print("due:   ", state.value)
    print(f"{meter.fed_tokens} tokens fed, {meter.reused_tokens} reused, {meter.forced_tokens} forced")


if __name__ == "__main__":
    main()
