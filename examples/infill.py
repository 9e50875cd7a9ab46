"""Fill a gap: texts of a language are drawn for it, and each is scored together with the text behind the gap."""

from outlines_cont import continuous, generate, models, samplers

BEFORE = "Message: Hello, this is Marta Keller.\nKind: "
AFTER = ", as the chairs are broken"


def main() -> None:
    model = models.tiny()
    # The language is a list of texts, a pattern or an expression; of a list all texts are scored, and nothing is drawn.
    found = generate.infill(model, BEFORE, AFTER, ["order", "invoice", "complaint", "quote"])
    for text, score in zip(found.texts, found.scores, strict=True):
        print(f"{score:8.2f} {text}")

    # The same by hand, to go on from samples in proportion to their weights: 32 words, drawn after the text before the gap.
    sampler = samplers.multinomial(32, temperature=8.0)
    words = generate.choice(model, list(found.texts), sampler=sampler)
    drawn = continuous(words)(BEFORE, rng=1)
    kept = drawn.resample([float(one.sum()) for one in model.score(drawn, AFTER)], 1)
    print(str(continuous(generate.text(model))(kept + AFTER, max_tokens=8)))


if __name__ == "__main__":
    main()
