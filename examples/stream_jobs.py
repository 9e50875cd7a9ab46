"""Stream jobs side by side: they come and go between any two steps, share every forward, and one is cancelled on the way."""

import asyncio

from outlines_cont import continuous, engine_of, generate, models, samplers

MESSAGES = {
    "lamps": "Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR.",
    "chairs": "Order for Owen Achterberg, Tampere: 3 pieces of garden chair, due 5 March 2030.",
    "crates": "Dear team, two of the crates that came to Bergen on 2030-02-11 are broken.",
}


async def job(name: str, text: generate.Generator, max_events: int | None) -> str:
    """Show a job as it writes; leave it after some events, which cancels it."""
    written, count = "", 0
    async with continuous(text).astream(f"Message: {MESSAGES[name]}\nRecord: ", max_tokens=24, rng=7) as stream:
        async for event in stream:
            written, count = written + event.text, count + 1
            if count == max_events:
                return f"{name}: {written} (cancelled)"
    return f"{name}: {written} ({event.finish_reason})"


async def main() -> None:
    model = models.tiny()
    greedy = generate.text(model)
    drawn = generate.text(model, sampler=samplers.multinomial(temperature=0.7))  # a job may have settings of its own
    with model.meter() as meter:
        jobs = [job("lamps", greedy, None), job("chairs", drawn, None), job("crates", greedy, 5)]
        for done in asyncio.as_completed(jobs):
            print(await done)
    print(f"{meter.sampled_tokens} tokens in {meter.forwards} forwards; {engine_of(model).num_running} rows left")


if __name__ == "__main__":
    asyncio.run(main())
