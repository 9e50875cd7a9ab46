"""Fill a gap: many texts are drawn for it, and each is weighed by how probable the text behind the gap is after it."""

from outlines_cont import continuous, generate, models, samplers

BEFORE = "Message: Hello, this is Marta Keller.\nKind: "
AFTER = ", as the chairs are broken"


def main() -> None:
    model = models.tiny()
    # A text for the gap is of any language: here one of four words, drawn 32 times after the text before the gap.
    sampler = samplers.multinomial(32, temperature=8.0)
    words = generate.choice(model, ["order", "invoice", "complaint", "quote"], sampler=sampler)
    drawn = continuous(words)(BEFORE, rng=1)
    # The prompt is fed once for all, and of each only the text behind the gap.
    scores = [float(one.sum()) for one in model.score(drawn, AFTER)]
    ranked = sorted(zip(scores, drawn.values[0], strict=True), reverse=True)
    for score, word in dict.fromkeys(ranked):
        print(f"{score:8.2f} {word}")
    # To go on from the best of them, or from samples in proportion to these weights:
    best = drawn.resample(scores, 1)
    print(str(continuous(generate.text(model))(best + AFTER, max_tokens=8)))


if __name__ == "__main__":
    main()
