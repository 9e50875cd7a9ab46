"""Five lines, each stopped at its line break exactly; what was written since a label goes into a shared variable."""

from outlines_cont import control, models, samplers
from outlines_cont.control import fixed, gen, label, shared, text_since

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\n"


async def script() -> None:
    await fixed("What she may buy next:\n")
    start = label()
    for number in range(1, 6):
        await fixed(f"{number}. ")
        await gen(regex="[a-z]{3,8}( [a-z]{3,8})?\n", stop_at="\n", name=f"line {number}")
        await fixed("\n")
    shared.set("result", text_since(start))


def main() -> None:
    model = models.tiny()
    result = control.run(model, script, PROMPT, sampler=samplers.multinomial(temperature=0.7), rng=1).check()
    print(result.shared["result"], end="")
    print(f"{result.usage.sampled_tokens} tokens sampled, {result.usage.forced_tokens} given")


if __name__ == "__main__":
    main()
