"""Stream tokens with their probabilities and those of the most probable others, and look at the logits of a place."""

import math

from outlines_cont import continuous, generate, models

MESSAGE = "Message: Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR.\n"


def main() -> None:
    model = models.tiny()
    decode = model.tokenizer.decode

    stream = continuous(generate.text(model)).stream(MESSAGE + "Record: ", top=3, max_tokens=6)
    for event in stream:
        for token_id, logprob, top in zip(event.token_ids, event.logprobs, event.top, strict=True):
            others = ", ".join(f"{decode([other])!r} {math.exp(value):.2f}" for other, value in top)
            print(f"{decode([token_id])!r} {math.exp(logprob):.2f}  of {others}")

    # All logits after the last token: the state has them, so nothing is fed again.
    logits = stream.state.logits[0][0]
    print(f"logits: {tuple(logits.shape)}, next {decode([int(logits.argmax())])!r}")


if __name__ == "__main__":
    main()
