"""One picture of a receipt, seen once, and four questions about it, in one batch, by the bundled vision model, which reads pictures like
this one and no others. For your own open a larger model, such as `models.transformers("Qwen/Qwen3-VL-4B-Instruct")`.
"""

from PIL import Image, ImageDraw, ImageFont

from outlines_cont import SequenceState, continuous, generate, models

LINES = ["Marta Books", "Porto", "14 Mar 2026", "Novel 18.90", "Total EUR 18.90"]


def drawn() -> Image.Image:
    """Return a picture with a line of text in each row of 16 pixels."""
    picture = Image.new("RGB", (160, 128), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    for row, line in enumerate(LINES):
        draw.text((4, 16 * row + 12), line, fill="black", font=font, anchor="ls")
    return picture


def main() -> None:
    model = models.tiny_vision()
    with model.meter() as meter:
        receipt = model.see("Read this receipt: <image>\n", images=[drawn()])
    print(f"seen: {meter.images} image, {meter.fed_tokens} tokens")
    questions = ["Shop: ", "Place: ", "Date: ", "Total: "]
    with model.meter() as meter:
        answers = continuous(generate.text(model))(
            SequenceState.stack([receipt + text for text in questions]), max_tokens=30
        )
    print(f"asked: {len(questions)} questions, {meter.images} images, {meter.fed_tokens} tokens")
    for question, (answer,) in zip(questions, answers.values, strict=True):
        print(f"{question}{answer}")
    model.prefix_cache.clear()
    with model.meter() as meter:
        continuous(generate.text(model))(receipt.detach_cache(), max_tokens=1)
    print(f"without keys and values: {meter.images} image, {meter.fed_tokens} tokens")


if __name__ == "__main__":
    main()
