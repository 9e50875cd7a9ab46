"""The bundled vision model before training: a tokenizer of bytes, a LLaVA of a small ViT and the bundled Llama, and its processor."""

from copy import deepcopy
from importlib.resources import as_file, files
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    ViTConfig,
)

from outlines_cont.cli.receipts import HEIGHT, WIDTH
from scripts.tiny_vision.documents import COLUMNS, PATCH_HEIGHT, PATCH_WIDTH, ROWS

END, IMAGE = "<eos>", "<image>"
MAX_POSITIONS = 2048
MEAN, DEVIATION = 0.9, 0.3
"""Of the greys, so that paper is near 0."""
TEMPLATE = (
    "{%- for message in messages -%}{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}{{- '<image>' if part.type == 'image' else part.text -}}{%- endfor -%}{%- endif -%}"
    "{{- eos_token if message.role == 'assistant' else '' -}}{%- endfor -%}{{- '\\nRecord: ' if add_generation_prompt else '' -}}"
)
"""A chat is an image, with text before it, and the record that answers it."""


def new_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are bytes; id 0 is the end token, id 1 stands for a patch of an image."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([END, IMAGE, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, IMAGE])
    return tokenizer


def new_network(tokenizer: Tokenizer) -> LlavaForConditionalGeneration:
    """Return a network whose language model is the bundled one, of whose tokens it keeps the bytes; the rest is random."""
    with as_file(files("outlines_cont.models") / "tiny") as folder:
        bundled = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        known = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    text = LlamaConfig(**bundled.config.to_diff_dict() | {"vocab_size": len(vocabulary), "pad_token_id": 0})
    vision = ViTConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=[HEIGHT, WIDTH],
        patch_size=[PATCH_HEIGHT, PATCH_WIDTH],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=1,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=ROWS * COLUMNS,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    network = LlavaForConditionalGeneration(config)
    weights = bundled.model.state_dict()
    table = network.model.language_model.embed_tokens.weight.detach().clone()
    for token, number in vocabulary.items():
        if (before := known.token_to_id(token)) is not None:
            table[number] = weights["embed_tokens.weight"][before]
    network.model.language_model.load_state_dict({**weights, "embed_tokens.weight": table})
    network.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
    return network


def save(network: LlavaForConditionalGeneration, tokenizer: Tokenizer, folder: Path, dtype: torch.dtype) -> None:
    """Write a folder that `models.transformers` opens, with weights of a float type."""
    folder.mkdir(parents=True, exist_ok=True)
    deepcopy(network).to(dtype).save_pretrained(folder)
    new_processor(tokenizer).save_pretrained(folder)


def new_processor(tokenizer: Tokenizer) -> LlavaProcessor:
    """Return the processor: greys of WIDTH x HEIGHT pixels, and as many image tokens as there are patches.

    The processor of LLaVA counts square patches. Squares of 16 pixels are half of ours; the others, and the class token that it takes
    away, are counted as additional ones.
    """
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, model_max_length=MAX_POSITIONS
    )
    wrapped.add_special_tokens({"additional_special_tokens": [IMAGE]})
    images = CLIPImageProcessorPil(
        size={"height": HEIGHT, "width": WIDTH},
        do_center_crop=False,
        image_mean=[MEAN] * 3,
        image_std=[DEVIATION] * 3,
    )
    squares = (HEIGHT // 16) * (WIDTH // 16)
    return LlavaProcessor(
        images,
        wrapped,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=ROWS * COLUMNS - squares + 1,
        image_token=IMAGE,
        chat_template=TEMPLATE,
    )
