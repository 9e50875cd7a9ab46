"""Checkpoint and return: write a record, go back to where it began, write another; nothing before it is fed again."""

import fsm
from outlines_cont import BatchedExecutor, models, samplers

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto.\nRecord: "
RECORD = fsm.json_schema(
    {
        "type": "object",
        "properties": {"customer": {"type": "string", "maxLength": 20}, "city": {"type": "string", "maxLength": 20}},
        "required": ["customer", "city"],
        "additionalProperties": False,
    }
)


def main() -> None:
    model = models.tiny()
    sampler = samplers.multinomial(temperature=1.5)
    with BatchedExecutor(model, seed=1) as executor, model.meter() as meter:
        conversation = executor.create(PROMPT)
        conversation.constrain(RECORD)
        executor.infer()
        checkpoint = conversation.mark()
        for _ in range(6):
            while conversation.step(sampler) not in model.eos_token_ids:
                executor.infer()
            print(conversation.text.removeprefix(PROMPT))
            conversation.rewind_to(checkpoint)
        print(f"{checkpoint.length} tokens of the prompt; {meter.recomputed_tokens} tokens fed twice")


if __name__ == "__main__":
    main()
