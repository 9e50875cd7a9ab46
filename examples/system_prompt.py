"""One system prompt for 32 conversations: it is fed once, and its keys and values are held once until they part."""

import fsm
from outlines_cont import BatchedExecutor, models

SYSTEM = "Message: Hello, this is Marta Keller from Porto. Please send desk lamps. Our last order was on 2030-11-02.\n"


def main() -> None:
    model = models.tiny()
    with BatchedExecutor(model) as executor, model.meter() as meter:
        system = executor.create(SYSTEM)
        executor.infer()
        conversations = [system.fork() for _ in range(32)]
        print(f"{meter.fed_tokens} tokens fed for 32 conversations")
        for number, conversation in enumerate(conversations):
            conversation.prompt(f"We need {number + 1} lamps.\nKind: ")
            conversation.constrain(fsm.choice(["order", "invoice", "complaint", "quote"]))
        writing = conversations
        while writing:
            executor.infer()
            token_ids = executor.step(writing)
            writing = [c for c, i in zip(writing, token_ids, strict=True) if i not in model.eos_token_ids]
        for conversation in conversations:
            print(conversation.text.removeprefix(SYSTEM).replace("\n", " "))
        print(f"{meter.forwards} forwards")


if __name__ == "__main__":
    main()
