"""Write a draft, look at it, cut it away and go on from a summary in its place: `following` a label costs the new tokens only."""

from outlines_cont import control, models
from outlines_cont.control import fixed, gen, label, log, text_since

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\n"


async def script() -> None:
    place = label()
    await fixed("Record: ")
    city = await gen(regex='[{]"customer": "[A-Za-z ]{1,20}", "city": "[A-Za-z ]{1,20}"[}]')
    log("draft:", text_since(place))
    # None of the draft is left, neither in the text nor in the cache.
    await fixed(f"Note: {len(city)} letters were cut.\nKind: ", following=place)
    await gen(choice=["order", "invoice", "complaint", "quote"])


def main() -> None:
    model = models.tiny()
    with model.meter() as meter:
        result = control.run(model, script, PROMPT).check()
    print(result.log, end="")
    print(result.text)
    print(f"{meter.rewound_tokens} tokens cut, {meter.recomputed_tokens} fed twice")


if __name__ == "__main__":
    main()
