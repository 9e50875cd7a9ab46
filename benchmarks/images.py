"""Images: eight questions about one image, and records of drawn receipts, beside `generate` of transformers with the image each time.

    python -m benchmarks.images
    python -m benchmarks.images --receipts 100

A network of Llava's kind with random weights, so that the texts are noise and only work is compared: both sides write the same number of
tokens, greedily, and the answers to the questions are compared token by token. Both sides in turn in one process, one thread; the least
processor time of all rounds. The image is seen anew in each round.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import process_time
from typing import Any

from rich.console import Console

from benchmarks import machine, table

_QUESTIONS = [f"{name}: " for name in ("Total", "Date", "Shop", "Tax", "Tip", "Paid by", "Items", "City")]
_NEW_TOKENS = 16
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["shop", "total", "items", "paid"],
    "properties": {
        "shop": {"enum": ["bakery", "garage", "florist", "bookshop"]},
        "total": {"type": "integer", "minimum": 1, "maximum": 999},
        "items": {"type": "integer", "minimum": 1, "maximum": 99},
        "paid": {"type": "boolean"},
    },
}


def receipt(number: int, side: int = 224) -> Any:
    """A drawn receipt, an image of PIL."""
    from PIL import Image, ImageDraw

    rng, page = random.Random(number), Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(page)
    for line in range(8):
        text = f"{rng.choice(['bread', 'bolts', 'roses', 'atlas'])} {rng.randint(1, 9)} x {rng.randint(100, 999) / 100:.2f}"
        draw.text((12, 12 + 24 * line), text, fill="black")
    return page


def random_model(hidden_size: int, num_layers: int) -> Any:
    """A network of Llava's kind with random weights, over the vocabulary of the bundled model; 196 tokens for an image of 224 x 224."""
    import transformers

    from outlines_cont import models

    transformers.set_seed(0)
    tokenizer = models.tiny().tokenizer.hugging_face
    tokenizer.chat_template = None  # one of texts
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
    }
    network = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            text_config=transformers.LlamaConfig(
                **sizes,
                vocab_size=len(tokenizer),
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.eos_token_id,
            ),
            vision_config=transformers.CLIPVisionConfig(**sizes, image_size=224, patch_size=16),
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        )
    )
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224})
    tokens = {"patch_size": 16, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return models.from_transformers(network.eval(), transformers.LlavaProcessor(pixels, tokenizer, **tokens))


class Theirs:
    """`generate` of transformers with an image in each call."""

    def __init__(self, model: Any) -> None:
        self._network, self._processor = model.hugging_face, model._reader.processor

    def __call__(self, texts: list[str], image: Any, count: int) -> list[list[int]]:
        """Return the ids of `count` new tokens after each text of one length, in one batch, with the image before each."""
        import torch

        given = self._processor(text=texts, images=[image] * len(texts), return_tensors="pt")
        with torch.no_grad():
            found = self._network.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        return [row[given["input_ids"].shape[1] :].tolist() for row in found]


def ask(model: Any, image: Any) -> list[list[int]]:
    """Return the answers to all questions: the image is seen, and then they run in one batch."""
    from outlines_cont import SequenceState, continuous, generate

    state = model.see("<image>\n", [image])
    found = continuous(generate.text(model))(
        SequenceState.stack([state + text for text in _QUESTIONS]), max_tokens=_NEW_TOKENS, min_tokens=_NEW_TOKENS
    )
    return [list(group[0].token_ids[-_NEW_TOKENS:]) for group in found.rows]


def in_turns(rounds: int, sides: dict[str, Callable[[], Any]], clear: Callable[[], None]) -> dict[str, float]:
    """Return the least processor seconds of each side."""
    least = dict.fromkeys(sides, float("inf"))
    for number in range(rounds + 1):
        for name, side in sides.items():
            clear()
            start = process_time()
            side()
            if number:  # the first round warms up
                least[name] = min(least[name], process_time() - start)
    return least


def questions(model: Any, theirs: Theirs, rounds: int) -> dict[str, Any]:
    """Measure the questions."""
    image, texts = receipt(0), [f"<image>\n{text}" for text in _QUESTIONS]
    ours, known = ask(model, image), [theirs([text], image, _NEW_TOKENS)[0] for text in texts]
    sides = {
        "ours": lambda: ask(model, image),
        "generate": lambda: [theirs([text], image, _NEW_TOKENS) for text in texts],
    }
    least = in_turns(rounds, sides, model.prefix_cache.clear)
    return {"case": f"{len(texts)} questions about one image", "equal": sum(map(list.__eq__, ours, known)), **least}


def records(model: Any, theirs: Theirs, rounds: int, count: int) -> dict[str, Any]:
    """Measure the records, against as many tokens of `generate` without a constraint."""
    from outlines_cont import pipelines

    extractor = pipelines.Extractor(model, _SCHEMA, images="scan", max_tokens=100, batch_size=8, is_scored=False)
    images = [receipt(number) for number in range(count)]
    found = extractor([{"scan": image} for image in images])
    failed = [row["error"] for row in found if row["error"] is not None]
    if failed:
        raise SystemExit(f"{len(failed)} records failed: {failed[0]}")
    lengths = [row["usage"]["tokens"] for row in found]

    def generated() -> None:
        for image, length in zip(images, lengths, strict=True):
            theirs(["<image>\nRecord: "], image, length)

    sides = {"ours": lambda: extractor([{"scan": image} for image in images]), "generate": generated}
    tokens = sum(lengths) / count
    return {
        "case": f"records of {count} receipts, {tokens:.1f} tokens each",
        **in_turns(rounds, sides, model.prefix_cache.clear),
    }


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side (default: 3)")
    parser.add_argument("--receipts", type=int, default=16, help="receipts of which records are made (default: 16)")
    parser.add_argument("--hidden-size", type=int, default=256, help="of the network (default: 256)")
    parser.add_argument("--layers", type=int, default=4, help="of its text and of its images (default: 4)")
    parser.add_argument("--output", default="images", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(("outlines-cont", "transformers", "torch"))
    import torch

    torch.set_num_threads(1)
    model = random_model(options.hidden_size, options.layers)
    theirs = Theirs(model)
    cases = [questions(model, theirs, options.rounds), records(model, theirs, options.rounds, options.receipts)]
    text = _page(cases, described, options.rounds, sum(one.numel() for one in model.hugging_face.parameters()))
    Console(width=160, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, {"machine": described, "options": vars(options), "cases": cases}, text)


def _page(cases: list[dict[str, Any]], described: dict[str, Any], rounds: int, num_weights: int) -> str:
    rows = [
        [one["case"], f"{one['generate']:.2f}", f"{one['ours']:.2f}", f"{one['generate'] / one['ours']:.1f}x"]
        for one in cases
    ]
    count = "one round" if rounds == 1 else f"{rounds} rounds"
    text = (
        f"# Images\n\n{machine.sentence(described)} Least processor seconds of {count}, one thread. A random network of "
        f"{num_weights / 1e6:.1f} million parameters, 196 tokens for an image; {_NEW_TOKENS} tokens for each answer, of which "
        f"{cases[0]['equal']} of {len(_QUESTIONS)} are equal on both sides. `generate` has the image in each call, and no constraint.\n\n"
    )
    return text + table.markdown(["case", "`generate`, s", "outlines-cont, s", "ratio"], rows)


if __name__ == "__main__":
    main()
