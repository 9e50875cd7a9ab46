"""One image, seen once, and four questions about it, in one batch. The network is tiny and its weights are random, so the answers are
noise: what is shown is what is fed. For answers open a model that sees, such as `models.transformers("Qwen/Qwen3-VL-4B-Instruct")`.
"""

import transformers
from PIL import Image, ImageDraw

from outlines_cont import SequenceState, continuous, generate, models


def random_model() -> models.HuggingFaceModel:
    """A network of Llava's kind with random weights, over the vocabulary of the bundled model."""
    transformers.set_seed(0)
    tokenizer = models.tiny().tokenizer.hugging_face
    tokenizer.chat_template = None  # one of texts
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    network = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            text_config=transformers.LlamaConfig(
                **sizes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id
            ),
            vision_config=transformers.CLIPVisionConfig(**sizes, image_size=48, patch_size=8),
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        )
    )
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48})
    tokens = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = transformers.LlavaProcessor(pixels, tokenizer, **tokens)
    return models.from_transformers(network, processor)


def main() -> None:
    model = random_model()
    scan = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(scan).text((8, 40), "Total 24.50", fill="black")
    with model.meter() as meter:
        receipt = model.see("Read this receipt: <image>\n", images=[scan])
    print(f"seen: {meter.images} image, {meter.fed_tokens} tokens")
    questions = ["Total: ", "Tax: ", "Tip: ", "Paid: "]
    with model.meter() as meter:
        amounts = continuous(generate.regex(model, "[0-9]{2}\\.[0-9]{2}"))(
            SequenceState.stack([receipt + text for text in questions])
        )
    print(f"asked: {len(amounts.generated)} questions, {meter.images} images, {meter.fed_tokens} tokens")
    model.prefix_cache.clear()
    with model.meter() as meter:
        continuous(generate.text(model))(receipt.detach_cache(), max_tokens=1)
    print(f"without keys and values: {meter.images} image, {meter.fed_tokens} tokens")


if __name__ == "__main__":
    main()
