"""Forks of forks: each level forks again, every leaf reports, and the first waits for all of them."""

from outlines_cont import control, models, samplers
from outlines_cont.control import fixed, fork, gen, shared

LEAVES = 8


async def script() -> None:
    path = ""
    for _ in range(3):
        path += str(await fork(2))
    await fixed("Kind: ")
    kind = await gen(choice=["order", "invoice", "complaint", "quote"])
    shared.append("kinds", [f"{path} {kind}"])
    # Compare and swap: whoever makes the count complete says so, and none is counted twice.
    if path == "000":
        shared.set("count", 1)
    else:
        await shared.wait("count")
        while not shared.cas("count", version := shared.version("count"), version + 1).is_written:
            pass
    if shared.get("count") == LEAVES:
        shared.set("complete", True)
    if path == "000":
        await shared.wait("complete")
        await fixed(f" (of {len(shared.get('kinds'))})")


def main() -> None:
    model = models.tiny()
    prompt = "Message: Please send 12 desk lamps to Porto by 2031-05-14.\n"
    result = control.run(model, script, prompt, sampler=samplers.multinomial(temperature=2.0), rng=4).check()
    for line in sorted(result.shared["kinds"]):
        print(line)
    print(len(result.forks), "forks;", result.text)


if __name__ == "__main__":
    main()
