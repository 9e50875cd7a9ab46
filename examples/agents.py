"""Several agents answer one message, each after an instruction of its own; the likeliest reply is kept."""

import fsm
from outlines_cont import BatchedExecutor, models, samplers

MESSAGE = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\n"
AGENTS = {"careful": "Note: read twice.\nKind: ", "quick": "Kind: ", "formal": "Note: dear customer.\nKind: "}


def main() -> None:
    model = models.tiny()
    with BatchedExecutor(model, seed=3) as executor:
        message = executor.create(MESSAGE)
        executor.infer()
        agents = {name: message.fork() for name in AGENTS}
        for name, agent in agents.items():
            agent.prompt(AGENTS[name])
            agent.constrain(fsm.choice(["order", "invoice", "complaint", "quote"]))
        writing = list(agents.values())
        while writing:
            executor.infer()
            token_ids = executor.step(writing, samplers.multinomial())
            writing = [agent for agent, i in zip(writing, token_ids, strict=True) if i not in model.eos_token_ids]
        weights = {name: float(agent.state.weights) for name, agent in agents.items()}
        for name, agent in agents.items():
            print(f"{name:8} {weights[name]:7.2f} {agent.text.rsplit(': ', 1)[1]}")
        best = max(weights, key=lambda name: weights[name])
        for name in set(agents) - {best}:
            agents[name].close()
        print("kept:", best, agents[best].text.rsplit(": ", 1)[1])


if __name__ == "__main__":
    main()
