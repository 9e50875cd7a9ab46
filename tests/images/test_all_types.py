"""The image-text types of transformers: a tiny random network of each is exact behind an image, or refused by name, or says why not.

Those that need a package, such as timm, are skipped if it is not installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.errors import UnsupportedModel
from outlines_cont.models.versions import NEWEST_TESTED
from tests.image_families import TYPES, network, processor
from tests.image_models import picture, tokenizer
from tests.images.oracle import evict_all, worst_error

EXACT = {
    "apertus1p5", "aria", "aya_vision", "chameleon", "cohere2_vision", "cohere_compass", "cosmos3_edge", "cosmos3_omni", "deepseek_ocr2",
    "deepseek_vl", "deepseek_vl_hybrid", "dots3_note", "emu3", "ernie4_5_vl_moe", "exaone4_5", "fast_vlm", "fuyu", "gemma3", "gemma3n",
    "gemma4", "gemma4_unified", "glm46v", "glm4v", "glm4v_moe", "glm5_next", "glm_ocr", "glmga", "got_ocr2", "granite4_vision",
    "granite_docling", "hy_v4_vl", "hyperclovax_vision_v2", "idefics2", "idefics3", "inkling2", "inkling2_loop", "inkling_mm_model",
    "internvl", "janus", "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llama4", "llava", "llava_next", "llava_next_video",
    "llava_onevision", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "minimax_m3_vl", "mistral3", "mistral_large4", "molmo2",
    "muse_glimmer", "muse_spark", "nemotron_h_omni", "ovis2", "paddleocr_vl", "perception_lm", "pp_chart2table", "qianfan_ocr",
    "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe",
    "qwen4_exp", "shieldgemma2", "smolvlm", "step3p7", "video_llama_3", "video_llava", "vipllava",
}  # fmt: skip
REFUSED = {
    **dict.fromkeys(("blip", "blip-2", "idefics", "instructblip", "instructblipvideo", "kosmos-2"), "pixel_values"),  # no text alone
    **dict.fromkeys(("pix2struct", "pp_formulanet", "udop", "vision-encoder-decoder"), "an encoder-decoder"),
    "diffusion_gemma": "cannot continue from its cache",
    "kosmos-2.5": "positions that count tokens",
    "paligemma": "whose logits change",
    "unlimited_ocr": "its cache is not exact",  # layers that drop what is written, but not what is prompted
}
CHANGED = {"hunyuan_vl", "mllama"}
"""What is behind an image is not what one forward of everything has: positions count the images before, images are beside the tokens."""
TEXTS_ALONE = {"evolla", "mistral4"}
"""Networks that take no images, of which one takes proteins."""
NO_TOKEN = {"git"}
"""Its images have no tokens in the text."""
UNSEEN = {"florence2": "an encoder-decoder", "t5gemma2": "an encoder-decoder", "pi0": "no layer that scores the next token"}
"""Refused before their weights are looked at."""
_PACKAGES = dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), "timm")
_ONE_IMAGE = {"minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "molmo2"}
"""The plain way, which joins the pixels of images along one dimension, does not read two images of these."""
_SAMPLE = {"aya_vision", "glm4v", "lfm2_vl", "llama4", "qwen2_5_omni_thinker", "qwen3_5"}
_EXACT = 1e-4


def _marked(kind: str) -> object:
    return pytest.param(kind, marks=() if kind in _SAMPLE else pytest.mark.slow)


@pytest.mark.parametrize("kind", [_marked(kind) for kind in sorted(EXACT & {*TYPES})])
def test_what_follows_an_image_is_exact(kind: str) -> None:
    if kind in _PACKAGES:
        pytest.importorskip(_PACKAGES[kind], reason=f"{kind} needs {_PACKAGES[kind]}, which is not installed")
    made = network(kind)
    model = models.from_transformers(made, processor(made))
    assert model.capabilities.images, model.capabilities.images.why
    write = continuous(generate.regex(model, "[a-z]{3} [0-9]{2}", force=False, sampler=samplers.multinomial()))
    with model.meter() as meter:
        state = model.see("Read this: <image>\nTotal: ", images=[picture(1)], rng=3)
    assert meter.images == 1
    forks = write(state.fork(3), max_tokens=10)
    beside = write([state[:-3], "A text: "], max_tokens=8, rng=1)
    pages = [] if kind in _ONE_IMAGE else [write(state.see(" and <image>, too: ", picture(2)), max_tokens=6)]
    evict_all(model)
    model.prefix_cache.clear()
    again = write(state.fork(3), max_tokens=10)
    assert max(worst_error(model, found) for found in (forks, beside, again, *pages)) < _EXACT
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
@pytest.mark.parametrize("kind", sorted(TEXTS_ALONE & {*TYPES}))
def test_a_network_of_texts_alone_is_exact(kind: str) -> None:
    model = models.from_transformers(network(kind), tokenizer())
    assert "no `pixel_values`" in model.capabilities.images.why
    assert worst_error(model, continuous(generate.text(model))("A text", max_tokens=3, min_tokens=3)) < _EXACT


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(NO_TOKEN & {*TYPES}))
def test_images_without_tokens_are_refused_and_texts_are_exact(kind: str) -> None:
    made = network(kind)
    given = transformers.GitProcessor(transformers.CLIPImageProcessorPil(size=16, crop_size=16), tokenizer())
    model = models.from_transformers(made, given)
    assert "got GitProcessor" in model.capabilities.images.why
    with pytest.raises(UnsupportedModel, match=type(made).__name__):
        model.see("<image>", [picture()])
    assert worst_error(model, continuous(generate.text(model))("A text", max_tokens=3, min_tokens=3)) < _EXACT


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CHANGED & {*TYPES}))
def test_a_network_that_is_changed_by_parts_says_so_and_takes_texts(kind: str) -> None:
    model = refusing_images(kind, "behind an image it is off by")
    state = continuous(generate.text(model))("A text", max_tokens=3, min_tokens=3)
    assert worst_error(model, state) < _EXACT


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*UNSEEN} & {*TYPES}))
def test_some_are_refused_without_their_weights(kind: str) -> None:
    with torch.device("meta"):
        made = transformers.AutoModelForImageTextToText.from_config(transformers.CONFIG_MAPPING[kind]())
    with pytest.raises(UnsupportedModel, match=UNSEEN[kind]) as error:
        models.from_transformers(made.eval(), tokenizer())
    assert type(made).__name__ in str(error.value)


_ALL = [*EXACT, *REFUSED, *CHANGED, *TEXTS_ALONE, *NO_TOKEN, *UNSEEN]


def test_all_types_of_the_newest_version_that_is_tested_have_a_verdict() -> None:
    assert len(_ALL) == len({*_ALL})
    if tuple(map(int, transformers.__version__.split(".")[:2])) == NEWEST_TESTED["transformers"]:
        assert {*_ALL} == {*TYPES}


def test_the_page_lists_the_types_that_are_tried() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [kind for kind in _ALL if f"`{kind}`" not in page] == []
    assert f"networks of {len(EXACT)} of them are exact" in page
