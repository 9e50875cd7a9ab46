"""Beam search by hand, in logarithms and with ends of text: every hypothesis forks into its likeliest continuations."""

import fsm
from outlines_cont import BatchedExecutor, TokenSet, models

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nKind: "
BEAMS, STEPS = 4, 12


def main() -> None:
    model = models.tiny()
    with BatchedExecutor(model) as executor:
        first = executor.create(PROMPT)
        first.constrain(fsm.choice(["order", "invoice", "complaint", "quote", "offer"]))
        beams, ended = [(0.0, first)], []
        for _ in range(STEPS):
            executor.infer()
            found = []
            for weight, conversation in beams:
                logprobs = conversation.logits().log_softmax(-1)
                left = TokenSet.all
                for _ in range(min(BEAMS, conversation.allowed.count(model.vocab_size))):
                    token_id = conversation.sample(mask=left)  # the likeliest that is left
                    left &= ~TokenSet.of([token_id])
                    found.append((weight + float(logprobs[token_id]), token_id, conversation))
            best = sorted(found, key=lambda one: -one[0])[:BEAMS]
            ended += [(weight, parent.text) for weight, token_id, parent in best if token_id in model.eos_token_ids]
            beams = [(w, parent.fork()) for w, token_id, parent in best if token_id not in model.eos_token_ids]
            for (_, fork), token_id in zip(beams, [i for _, i, _ in best if i not in model.eos_token_ids], strict=True):
                fork.prompt(token_id)
        for weight, text in sorted(ended, reverse=True):
            print(f"{weight:8.3f} {text.removeprefix(PROMPT)}")


if __name__ == "__main__":
    main()
