"""Choose among options, some of which others begin with: the same question for many messages, all in one batch."""

from outlines_cont import control, models
from outlines_cont.control import fixed, gen

MESSAGES = [
    "Please send 12 desk lamps to Porto by 2031-05-14.",
    "The lamps arrived broken, and I want my money back.",
    "How much are 40 desk lamps?",
]


async def script() -> None:
    await fixed("Kind: ")
    kind = await gen(choice=["order", "orders", "invoice", "complaint", "quote"], name="kind")
    await fixed("\nIs it an order? ")
    # The answer follows from what was chosen: a script is Python.
    await gen(choice=["yes"] if kind.startswith("order") else ["no"], name="answer")


def main() -> None:
    model = models.tiny()
    programs = [control.start(model, script, f"Message: {message}\n") for message in MESSAGES]
    for message, program in zip(MESSAGES, programs, strict=True):
        captures = program.result().check().captures
        print(f"{captures['kind']:10} {captures['answer']:4} {message}")


if __name__ == "__main__":
    main()
