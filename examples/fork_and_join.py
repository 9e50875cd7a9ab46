"""Three forks: two write a reading of the message each, the first waits for both and joins them. Waiting costs nothing."""

from outlines_cont import control, models, samplers
from outlines_cont.control import fixed, fork, gen, log, shared

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\n"


async def script() -> None:
    index = await fork(3)
    if index == 0:
        kind, due = await shared.wait("kind", "due")
        await fixed(f"An {kind}, due on {due}.")
        log("joined", kind, "and", due)
    elif index == 1:
        await fixed("Kind: ")
        shared.set("kind", await gen(choice=["order", "invoice"]))
    else:
        await fixed("Due: ")
        shared.set("due", await gen(regex="[0-9]{4}-[0-9]{2}-[0-9]{2}"))


def main() -> None:
    model = models.tiny()
    with model.meter() as meter:
        result = control.run(model, script, PROMPT, sampler=samplers.greedy()).check()
    for branch in result.forks:
        print(branch.index, branch.text)
    print(result.log, end="")
    print(f"{meter.forwards} forwards for {meter.sampled_tokens} sampled tokens; the prompt was fed once")


if __name__ == "__main__":
    main()
