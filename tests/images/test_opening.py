"""Models of images and texts: how they are opened, what is refused, and images in all the forms that are read."""

from __future__ import annotations

import base64
import copy
import io
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from outlines_cont import continuous, generate, models
from outlines_cont.errors import ImageError, UnsupportedModel
from outlines_cont.models.image_file import ImageLimits, open_image
from outlines_cont.models.image_reader import ImageReader
from outlines_cont.pipelines.image_files import ImageFiles
from tests.image_families import network
from tests.image_models import VISION, image_model, parts, picture, text_options, tokenizer
from tests.images.oracle import worst_error

pytestmark = pytest.mark.filterwarnings("ignore:.*torchvision.*")


def test_a_folder_of_a_network_with_images_opens_with_its_processor(tmp_path: Path) -> None:
    network, processor = parts("llava")
    network.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model = models.transformers(tmp_path)
    assert type(model.hugging_face) is transformers.LlavaForConditionalGeneration
    assert model.capabilities.images, model.capabilities.images.why
    assert model.capabilities.fused, model.capabilities.fused.why
    state = continuous(generate.text(model))(model.see("Look: <image> and", [picture()]), max_tokens=3, min_tokens=3)
    assert worst_error(model, state) < 1e-4
    assert pickle.loads(pickle.dumps(state)) == state  # noqa: S301


def test_texts_alone_need_no_processor_and_are_those_of_the_text_model(tmp_path: Path) -> None:
    network, _ = parts("llava")
    network.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = models.transformers(tmp_path)
    text = transformers.LlamaForCausalLM(network.config.text_config)
    text.model.load_state_dict(network.model.language_model.state_dict())
    text.lm_head.load_state_dict(network.lm_head.state_dict())
    plain = models.from_transformers(text.eval(), tokenizer())
    calls = [continuous(generate.text(one))("Message: two lamps", max_tokens=8, min_tokens=8) for one in (model, plain)]
    assert calls[0].generated == calls[1].generated
    assert torch.equal(calls[0].logprobs[..., -8:], calls[1].logprobs[..., -8:])
    assert not model.capabilities.images
    assert "processor cannot be used" in model.capabilities.images.why


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
@pytest.mark.parametrize("place", ["", "model", "model.language_model", "lm_head"])
def test_what_is_changed_around_the_text_model_is_run_by_transformers(family: str, place: str) -> None:
    network = copy.deepcopy(parts(family)[0])
    model = models.from_transformers(network, tokenizer())
    module = network.get_submodule(place)
    logits = partial(_next_logits, model)
    before = logits()
    assert model.capabilities.fused, model.capabilities.fused.why
    handle = module.register_forward_hook(lambda _module, _given, out: doubled(out))
    assert model.capabilities.fused.why == "hooks are registered"
    assert not torch.allclose(before, logits())
    handle.remove()
    assert model.capabilities.fused
    assert torch.equal(before, logits())
    run = module.forward
    module.forward = lambda *given, **options: run(*given, **options)
    assert model.capabilities.fused.why == "a method of a module is replaced"


def _next_logits(model: Any) -> torch.Tensor:
    return continuous(generate.text(model))("Message: two lamps", max_tokens=1, min_tokens=1).logits


def doubled(out: Any) -> Any:
    """What a module returns, with the numbers of its first tensor twice as large."""
    if isinstance(out, torch.Tensor):
        return out * 2
    name = "logits" if "logits" in out else "last_hidden_state"
    out[name] = out[name] * 2
    return out


def test_a_network_whose_prompt_is_not_causal_is_refused_by_name() -> None:
    (image,) = [tokenizer().convert_tokens_to_ids("<image>")]
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**text_options()),
        vision_config=transformers.SiglipVisionConfig(**VISION, patch_size=8, projection_dim=32),
        image_token_id=image,
        projection_dim=32,
    )
    network = transformers.PaliGemmaForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModel, match="PaliGemmaForConditionalGeneration, whose logits change"):
        models.from_transformers(network, tokenizer())


def test_a_network_of_no_text_is_refused(tmp_path: Path) -> None:
    transformers.CLIPVisionConfig(**VISION, patch_size=8).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="neither in `AutoModelForCausalLM` nor"):
        models.transformers(tmp_path)


def test_the_probe_finds_a_mask_that_is_wrong_behind_cached_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ImageReader.options
    monkeypatch.setattr(ImageReader, "options", lambda self, *args: options(self, *args[:4]))
    model = models.from_transformers(*parts("gemma3"))
    assert not model.capabilities.images
    assert "off by" in model.capabilities.images.why


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def test_one_image_in_all_its_forms_is_one_state(tmp_path: Path) -> None:
    model, array = image_model(), picture(4)
    image = Image.fromarray(array)
    data = _png(image)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    forms = [array, torch.from_numpy(array), image, data, path, str(path), url]
    assert len({model.see("<image>", [form]) for form in forms}) == 1


def test_an_image_is_turned_as_its_file_says_and_transparency_is_white() -> None:
    image = Image.new("RGB", (4, 2), "red")
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    file = io.BytesIO()
    image.save(file, format="JPEG", exif=exif)
    assert open_image(file.getvalue()).size == (2, 4)
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert np.asarray(open_image(clear)).min() == 255
    assert np.asarray(open_image(_png(clear))).min() == 255


def _file(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_greys_of_sixteen_bits_become_bytes(kind: str) -> None:
    greys = np.random.default_rng(1).integers(0, 256, (5, 7), dtype=np.uint8)
    deep = Image.fromarray(greys.astype(np.uint16) * 257)
    for source in (deep, _file(deep, kind)):
        assert (np.asarray(open_image(source)) == greys[..., None]).all()
    for mode in ("I", "F"):
        assert (np.asarray(open_image(Image.fromarray(greys).convert(mode))) == greys[..., None]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "La", "RGBa"])
def test_images_of_all_modes_are_those_of_pil_on_white(mode: str) -> None:
    image = Image.fromarray(picture(2, (16, 12)))
    way = {"RGBa": "RGBA", "PA": "LA", "La": "LA"}.get(mode, "RGB")
    given = image.convert(way).convert(mode)
    assert given.mode == mode
    assert (np.asarray(open_image(given)) == np.asarray(image.convert(way).convert(mode).convert(way).convert("RGB"))).all()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"no image", "none that PIL knows$"),
        (b"", "an empty file$"),
        (Image.fromarray(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)), r"from 0 to 1 \(F\)"),
        (Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)), "from 0 to 70000"),
        ("/no/such/file.png", "cannot be read"),
        ("https://example.com/a.png", "URLs are not fetched"),
        ("data:image/png;base64,%%%", "expected base64"),
        ("data:image/png", "without a comma"),
        (np.zeros((2, 2, 3)), "of bytes"),
        (12, "got int"),
    ],
)
def test_what_is_no_image_is_an_error(source: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        open_image(source)


def test_limits_are_checked_before_an_image_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _png(Image.new("1", (3000, 3000)))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(ImageError, match="3000 x 3000"):
        open_image(data, ImageLimits(pixels=10**6))
    with pytest.raises(ImageError, match="at most 10 bytes"):
        open_image(data, ImageLimits(file_bytes=10))
    with pytest.raises(ImageError, match="at most 10 bytes"):
        open_image("data:image/png;base64," + "A" * 1000, ImageLimits(file_bytes=10))


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for source in (tmp_path / "pipe.png", "/dev/zero"):
        with pytest.raises(ImageError, match="no regular file"):
            open_image(source)
    assert [row.fields for row in ImageFiles([str(tmp_path / "pipe.png")], "image")] == [{"image": str(tmp_path / "pipe.png")}]


def test_an_image_that_pil_cannot_finish_is_an_error_in_all_forms() -> None:
    data = _png(Image.fromarray(picture(3, (64, 64))))
    for source in (data[: len(data) // 2], Image.open(io.BytesIO(data[: len(data) // 2]))):
        with pytest.raises(ImageError, match="truncated"):
            open_image(source)
    image = Image.open(io.BytesIO(data))
    image.close()
    with pytest.raises(ImageError):
        open_image(image)


def test_the_limit_of_pil_is_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ImageError, match="at most 64,000,000 pixels"):
        open_image(_png(Image.new("1", (300, 300))))


def test_one_bad_image_of_a_batch_fails_alone() -> None:
    model = image_model()
    state = model.see(["<image>", "<image> b"], [[b"no image"], [picture()]])
    assert isinstance(state.errors[0][0], ImageError)
    assert state.errors[1] == [None]
    with pytest.raises(ImageError):
        model.see("<image>", [b"no image"])


def test_checkpoints_of_llama_4_open_with_images_and_of_texts_alone(tmp_path: Path) -> None:
    made = network("llama4")
    both, text = tmp_path / "both", tmp_path / "text"
    made.save_pretrained(both)
    tokenizer().save_pretrained(both)
    made.language_model.save_pretrained(text)
    tokenizer().save_pretrained(text)
    found = [models.transformers(folder) for folder in (both, text)]
    assert [type(model.hugging_face).__name__ for model in found] == ["Llama4ForConditionalGeneration", "Llama4ForCausalLM"]
    states = [continuous(generate.text(model))("Message: two lamps", max_tokens=6, min_tokens=6) for model in found]
    assert states[0].generated == states[1].generated
    assert max(worst_error(model, state) for model, state in zip(found, states, strict=True)) < 1e-4
