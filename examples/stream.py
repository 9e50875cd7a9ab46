"""Stream text with stop conditions: stop texts and stop tokens, whole characters, nothing shown that is taken back."""

from outlines_cont import generate, models

PROMPT = "Message: This is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14. We pay 348.50 EUR.\nRecord: "


def main() -> None:
    model = models.tiny()
    text = generate.text(model)

    for piece in text.stream(
        PROMPT, max_tokens=40, stop_at=['"item"', "\n"], stop_token_ids=[model.tokenizer.eos_token_id]
    ):
        print(piece, end="", flush=True)
    print()

    # The last event says which one it was.
    for event in text.stream(PROMPT, events=True, max_tokens=40, stop_at=['"item"', "\n"]):
        if event.finish_reason:
            print(f"ended by {event.finish_reason}: {event.stop!r}")


if __name__ == "__main__":
    main()
