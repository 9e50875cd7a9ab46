"""Tiny random networks of images and texts, with the processors of their families, made of configs and the bundled tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from outlines_cont import models

_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_NAMES = (
    *("<image>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<start_of_image>", "<end_of_image>"),
    *("<image_soft_token>", "[IMG]", "[IMG_END]", "<img>", "</img>", "<IMG_CONTEXT>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
)


@cache
def tokenizer() -> Any:
    """The tokenizer of the bundled model, with the special tokens of all these families."""
    own = copy.deepcopy(models.tiny().tokenizer.hugging_face)
    own.chat_template = None
    own.add_special_tokens({"additional_special_tokens": [*_NAMES]})
    return own


def _ids(*names: str) -> list[int]:
    return [tokenizer().convert_tokens_to_ids(name) for name in names]


def text_options(**changes: Any) -> dict[str, Any]:
    end = tokenizer().eos_token_id
    return {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": len(tokenizer()), "max_position_embeddings": 512},
        **{"bos_token_id": 0, "eos_token_id": end, "pad_token_id": end},
        **changes,
    }


VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16}
_GRID = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN = {**_GRID, "hidden_size": 16, "out_hidden_size": 32}
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}


def _llava() -> tuple[Any, Any]:
    (image,) = _ids("<image>")
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text_options()),
        vision_config=transformers.CLIPVisionConfig(**VISION, patch_size=8, projection_dim=16),
        image_token_id=image,
    )
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    tokens = {"patch_size": 8, "vision_feature_select_strategy": "default", "image_token": "<image>", "num_additional_image_tokens": 1}
    return transformers.LlavaForConditionalGeneration(config), transformers.LlavaProcessor(pixels, tokenizer(), **tokens)


def _idefics3() -> tuple[Any, Any]:
    (image,) = _ids("<image>")
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**text_options()).to_dict(),
        vision_config={**VISION, "patch_size": 4},
        image_token_id=image,
        scale_factor=2,
        pad_token_id=tokenizer().eos_token_id,
    )
    sizes = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}, "do_image_splitting": True}
    return transformers.Idefics3ForConditionalGeneration(config), transformers.Idefics3Processor(
        transformers.Idefics3ImageProcessorPil(**sizes), tokenizer(), image_seq_len=4
    )


def _gemma3() -> tuple[Any, Any]:
    (soft,) = _ids("<image_soft_token>")
    kinds = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3Config(
        text_config=text_options(sliding_window=9, layer_types=kinds),
        vision_config={**VISION, "patch_size": 4},
        image_token_id=soft,
        mm_tokens_per_image=4,
    )
    own = copy.deepcopy(tokenizer())
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    for name, text in named.items():
        setattr(own, name, text)
        setattr(own, f"{name}_id", own.convert_tokens_to_ids(text))
    pixels = transformers.Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    return transformers.Gemma3ForConditionalGeneration(config), transformers.Gemma3Processor(pixels, own, image_seq_length=4)


def _mistral3() -> tuple[Any, Any]:
    (image,) = _ids("[IMG]")
    vision = {**VISION, "image_size": 32, "patch_size": 4, "head_dim": 8}  # larger than any image, whose places have a table
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**text_options(sliding_window=None)),
        vision_config=transformers.PixtralVisionConfig(**vision),
        image_token_id=image,
        spatial_merge_size=2,
    )
    pixels = transformers.PixtralImageProcessorPil(size={"longest_edge": 24}, patch_size={"height": 8, "width": 8})
    return transformers.Mistral3ForConditionalGeneration(config), PlainProcessor(
        pixels, "[IMG]", lambda made: int(made["image_sizes"].prod()) // 64, ("", "[IMG_END]")
    )


def _internvl() -> tuple[Any, Any]:
    (image,) = _ids("<IMG_CONTEXT>")
    vision = {**VISION, "image_size": [16, 16], "patch_size": [4, 4]}
    config = transformers.InternVLConfig(
        text_config=transformers.Qwen2Config(**text_options()),
        vision_config=transformers.InternVLVisionConfig(**vision),
        image_token_id=image,
        downsample_ratio=0.5,
    )
    pixels = transformers.GotOcr2ImageProcessorPil(size={"height": 16, "width": 16}, crop_to_patches=True, min_patches=1, max_patches=2)
    return transformers.InternVLForConditionalGeneration(config), PlainProcessor(
        pixels, "<IMG_CONTEXT>", lambda made: 4 * len(made["pixel_values"]), ("<img>", "</img>")
    )


class PlainProcessor:
    """A processor whose own class needs torchvision, as that of videos does: the text of an image, and its pixels.

    `count` returns how many tokens an image has, by what the processor of its pixels has made.
    """

    def __init__(self, image_processor: Any, image_token: str, count: Callable[[Any], int], around: tuple[str, str] = ("", "")) -> None:
        self.tokenizer, self.image_processor, self.image_token = tokenizer(), image_processor, image_token
        self._count, self._around = count, around

    def __call__(self, text: list[str], images: list[Any], **options: Any) -> dict[str, Any]:
        made = self.image_processor(images, return_tensors="pt")
        left, right = self._around
        whole = text[0].replace(self.image_token, left + self.image_token * self._count(made) + right)
        return {"input_ids": torch.tensor([self.tokenizer(whole, add_special_tokens=False)["input_ids"]]), **made}


def _qwen_processor() -> PlainProcessor:
    sizes = {"shortest_edge": 64, "longest_edge": 1600}
    pixels = transformers.Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size=sizes)
    return PlainProcessor(pixels, "<|image_pad|>", lambda made: int(made["image_grid_thw"].prod()) // 4)


def _qwen(kind: str) -> tuple[Any, Any]:
    image, start, end = _ids("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = {"image_token_id": image, "vision_start_token_id": start, "vision_end_token_id": end, "video_token_id": _ids("<|video_pad|>")[0]}
    if kind == "qwen2_vl":
        vision = {**_GRID, "embed_dim": 16, "hidden_size": 32}
        config = transformers.Qwen2VLConfig(text_config=text_options(rope_parameters=_ROPE), vision_config=vision, **ids)
        return transformers.Qwen2VLForConditionalGeneration(config), _qwen_processor()
    if kind == "qwen2_5_vl":
        vision = {**_QWEN, "intermediate_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
        config = transformers.Qwen2_5_VLConfig(text_config=text_options(rope_parameters=_ROPE), vision_config=vision, **ids)
        return transformers.Qwen2_5_VLForConditionalGeneration(config), _qwen_processor()
    vision = {**_QWEN, "intermediate_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(
        text_config=text_options(rope_parameters={**_ROPE, "mrope_interleaved": True}), vision_config=vision, **ids
    )
    return transformers.Qwen3VLForConditionalGeneration(config), _qwen_processor()


def _smolvlm() -> tuple[Any, Any]:
    network, processor = _idefics3()
    return transformers.SmolVLMForConditionalGeneration(
        transformers.SmolVLMConfig(**{**network.config.to_dict(), "model_type": "smolvlm"})
    ), processor


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llava": _llava,
    "idefics3": _idefics3,
    "smolvlm": _smolvlm,
    "gemma3": _gemma3,
    "mistral3": _mistral3,
    "internvl": _internvl,
    "qwen2_vl": lambda: _qwen("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen("qwen2_5_vl"),
    "qwen3_vl": lambda: _qwen("qwen3_vl"),
}


@cache
def parts(name: str) -> tuple[Any, Any]:
    """A network of a family with large weights, so that pixels count, and its processor."""
    torch.manual_seed(0)
    try:
        network, processor = FAMILIES[name]()
    except ImportError as error:
        if f"transformers=={transformers.__version__}\n" in _CONSTRAINTS.read_text(encoding="utf-8"):
            raise
        pytest.skip(f"transformers {transformers.__version__} cannot make its processor: {str(error).strip().splitlines()[0]}")
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    return network.eval(), processor


@cache
def image_model(name: str = "llava") -> Any:
    return models.from_transformers(*parts(name))


def picture(seed: int = 0, size: tuple[int, int] = (20, 28)) -> NDArray[np.uint8]:
    """An array of random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
