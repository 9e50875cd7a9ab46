"""Quote the message: what stands between the quotation marks occurs in it, letter by letter, and the mark ends it."""

from outlines_cont import control, models, samplers
from outlines_cont.control import fixed, fork, gen

MESSAGE = "Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14."


async def script() -> None:
    await fork(4)
    await fixed('She wrote: "')
    quote = await gen(substring_of=MESSAGE, max_tokens=40, name="quote")
    assert quote in MESSAGE
    await fixed("\n")


def main() -> None:
    result = control.run(
        models.tiny(), script, f"Message: {MESSAGE}\n", sampler=samplers.multinomial(temperature=1.5), rng=6
    )
    for branch in result.check().forks:
        print(branch.text, end="")


if __name__ == "__main__":
    main()
