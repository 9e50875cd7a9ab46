"""The image-text types of transformers: a tiny random network of each is exact behind an image, or refused by name, or says why not.

What is in no list has no network that could be made here: it is too large, needs another package, or takes tensors of another layout.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.errors import UnsupportedModel
from tests.image_families import TYPES, network, processor
from tests.image_models import picture, tokenizer
from tests.images.oracle import evict_all, worst_error

EXACT = {
    "aria", "aya_vision", "cohere2_vision", "cosmos3_edge", "cosmos3_omni", "deepseek_vl", "deepseek_vl_hybrid", "ernie4_5_vl_moe",
    "exaone4_5", "gemma3", "gemma4", "gemma4_unified", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "hy_v4_vl",
    "hyperclovax_vision_v2", "idefics2", "idefics3", "internvl", "janus", "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llava",
    "llava_next", "llava_next_video", "llava_onevision", "minicpm_ocr", "minicpmv4_6", "mistral3", "mistral_large4", "muse_glimmer",
    "muse_spark", "ovis2", "paddleocr_vl", "qianfan_ocr", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl",
    "qwen3_vl_moe", "shieldgemma2", "smolvlm", "step3p7", "video_llama_3", "video_llava", "vipllava",
}  # fmt: skip
REFUSED = {
    **dict.fromkeys(("blip", "blip-2", "instructblip", "instructblipvideo", "kosmos-2"), "pixel_values"),  # no text without an image
    **dict.fromkeys(("pix2struct", "pp_formulanet", "udop", "vision-encoder-decoder"), "an encoder-decoder"),
    "paligemma": "whose logits change",
}
CHANGED = {"hunyuan_vl"}
"""What is behind an image is not what one forward of everything has: its positions count the images before."""
_ENCODER_DECODERS = {"florence2", "t5gemma2"}
"""Refused before their weights are looked at, as those of other encoder-decoders are."""
UNUSABLE = {"qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"}  # whose positions need a mask, and the parts of a sound
_SAMPLE = {"aya_vision", "glm4v", "lfm2_vl", "qwen3_5"}
_EXACT = 1e-4


def _marked(kind: str) -> object:
    return pytest.param(kind, marks=() if kind in _SAMPLE else pytest.mark.slow)


@pytest.mark.parametrize("kind", [_marked(kind) for kind in sorted(EXACT & {*TYPES})])
def test_what_follows_an_image_is_exact(kind: str) -> None:
    made = network(kind)
    model = models.from_transformers(made, processor(made))
    assert model.capabilities.images, model.capabilities.images.why
    write = continuous(generate.regex(model, "[a-z]{3} [0-9]{2}", force=False, sampler=samplers.multinomial()))
    with model.meter() as meter:
        state = model.see("Read this: <image>\nTotal: ", images=[picture(1)], rng=3)
    assert meter.images == 1
    forks = write(state.fork(3), max_tokens=10)
    beside = write([state[:-3], "A text: "], max_tokens=8, rng=1)
    evict_all(model)
    model.prefix_cache.clear()
    again = write(state.fork(3), max_tokens=10)
    assert max(worst_error(model, found) for found in (forks, beside, again)) < _EXACT
    assert forks.generated == again.generated
    other = write(model.see("Read this: <image>\nTotal: ", images=[picture(2)], rng=3), max_tokens=10)
    assert other.rows[0][0].logprobs != forks.rows[0][0].logprobs


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*REFUSED} & {*TYPES}))
def test_what_cannot_be_exact_is_refused_by_name(kind: str) -> None:
    made = network(kind)
    with pytest.raises(UnsupportedModel, match=REFUSED[kind]) as error:
        models.from_transformers(made, tokenizer())
    assert type(made).__name__ in str(error.value)


def refusing_images(kind: str, why: str) -> models.HuggingFaceModel:
    """Return a model that tells why it sees no images, and refuses them."""
    made = network(kind)
    model = models.from_transformers(made, processor(made))
    assert why in model.capabilities.images.why
    with pytest.raises(UnsupportedModel, match=type(made).__name__):
        model.see("<image>", [picture()])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(UNUSABLE & {*TYPES}))
def test_a_network_whose_images_cannot_be_placed_says_so_and_takes_texts(kind: str) -> None:
    model = refusing_images(kind, "cannot be used")
    assert len(continuous(generate.text(model))("A text", max_tokens=3, min_tokens=3).generated) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CHANGED & {*TYPES}))
def test_a_network_that_is_changed_by_parts_says_so_and_takes_texts(kind: str) -> None:
    model = refusing_images(kind, "behind an image it is off by")
    state = continuous(generate.text(model))("A text", max_tokens=3, min_tokens=3)
    assert worst_error(model, state) < _EXACT


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(_ENCODER_DECODERS & {*TYPES}))
def test_an_encoder_decoder_is_refused_without_its_weights(kind: str) -> None:
    with torch.device("meta"):
        made = transformers.AutoModelForImageTextToText.from_config(transformers.CONFIG_MAPPING[kind]())
    with pytest.raises(UnsupportedModel, match=f"{type(made).__name__}, an encoder-decoder"):
        models.from_transformers(made.eval(), tokenizer())


def test_the_page_lists_the_types_that_are_tried() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    for kind in (*EXACT, *REFUSED, *UNUSABLE, *CHANGED, *_ENCODER_DECODERS):
        assert f"`{kind}`" in page, kind
    assert not EXACT & {*REFUSED}
