"""Tiny random networks of the image-text types of transformers, made from their own configs: every number is made small by its name, and
the tensors of an image are of the first layout that the network takes. The processors are stand-ins, as only the networks are tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from outlines_cont.models.versions import complete_outputs
from tests.image_models import PlainProcessor, picture, text_options, tokenizer
from tests.image_numbers import AROUND, COUNTS, GIVEN, LAYOUTS, OF_TEXT, OWN, PATCH, SIDE, TEXT, TOKENS, VISION, WHOLE

TYPES = sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
_MAX_PARAMETERS = 20_000_000


class StandIn:
    """The pixels of an image in one layout, as the processor of a family would return them."""

    def __init__(self, shape: tuple[int, ...], beside: dict[str, torch.Tensor]) -> None:
        self._shape, self._beside = shape, beside

    def __call__(self, images: list[Any], **options: Any) -> dict[str, torch.Tensor]:
        """Return the tensors of one image."""
        image = images[0] if isinstance(images[0], Image.Image) else Image.fromarray(images[0])
        values = np.asarray(image.resize((SIDE, SIDE)), dtype=np.float32).transpose(2, 0, 1).reshape(-1) / 128 - 1
        return {"pixel_values": torch.tensor(np.resize(values, self._shape)), **self._beside}


def network(kind: str) -> Any:
    """Return a random network of a type, the same each time.

    Raises:
        ValueError: no config with these numbers makes one that is small.
    """
    try:
        config = _config(kind)
        with torch.device("meta"):
            size = sum(map(torch.numel, _class(kind)._from_config(config).parameters()))
        if size > _MAX_PARAMETERS:
            raise ValueError(f"{size:,} parameters")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made = _class(kind)._from_config(config).float().eval()
            complete_outputs(made)
            with torch.no_grad():
                for name, weight in made.named_parameters():
                    if "gate" in name and not weight.any():  # of what is added to the texts
                        weight.fill_(0.5)
                    elif weight.dim() > 1:  # so that logits are not flat, and pixels count
                        weight.mul_(4) if weight.isfinite().all() and weight.any() else weight.normal_(0, 0.1)
        return made
    except Exception as error:  # whatever a config or a network says of numbers that do not fit it
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from error


def processor(made: Any) -> PlainProcessor:
    """Return a processor whose pixels a network takes, and that makes them count.

    Raises:
        ValueError: no layout that is known here fits.
    """
    ids = tokenizer()("the name of red: ", add_special_tokens=False)["input_ids"]
    image, failures = tokenizer().convert_tokens_to_ids("<image>"), []
    kind = made.config.model_type
    known, around = LAYOUTS.get(kind), ("<|vision_start|>", "<|vision_end|>") if kind in AROUND else ("", "")
    own = [
        getattr(made.config, f"vision_{side}_token_id", None) is None for side in ("start", "end")
    ]  # which the reader writes if it is known
    left, right = (tokenizer()(one, add_special_tokens=False)["input_ids"] for one in around)
    for pixels in _layouts(made) if known is None else [StandIn(*known[1:])]:
        for count in COUNTS if known is None else known[:1]:
            row = torch.tensor([[*ids, *left, *[image] * count, *right, *ids]])
            try:
                first, second = (_logits(made, row, row.eq(image).long(), pixels([picture(seed)])) for seed in (1, 2))
            except Exception as error:  # whatever a network says of tensors that do not fit it
                failures.append(f"{type(error).__name__}: {str(error)[:100]}")
                continue
            if first.shape[1] == row.shape[1] and float((first[:, -1] - second[:, -1]).abs().max()) > 1e-5:
                return PlainProcessor(pixels, "<image>", lambda _, count=count: count, (around[0] * own[0], around[1] * own[1]))  # type: ignore[misc]
            failures.append("pixels do not count")
    raise ValueError("; ".join(dict.fromkeys(failures)))


def _logits(made: Any, row: torch.Tensor, kinds: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    takes, place = inspect.signature(made.forward).parameters, getattr(made, "model", made)
    if hasattr(place, "rope_deltas"):
        place.rope_deltas = None
    types = {name: kinds for name in ("token_type_ids", "mm_token_type_ids") if name in takes}
    types["attention_mask"] = torch.ones_like(row)
    with torch.no_grad():
        logits: torch.Tensor = made(input_ids=row, use_cache=False, **types, **inputs).logits
    return logits


def _layouts(made: Any) -> Iterator[StandIn]:
    """Yield layouts of the tensors of an image, those of rarer arguments first."""
    takes, num_patches = inspect.signature(made.forward).parameters, (SIDE // PATCH) ** 2
    places = torch.tensor([[[x, y] for y in range(SIDE // PATCH) for x in range(SIDE // PATCH)]])
    grid = {"image_grid_thw": torch.tensor([[1, 4, 4]]), "image_merge_sizes": torch.tensor([2])}
    patches = {"spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": torch.ones(1, num_patches, dtype=torch.int64)}
    masked = {"pixel_attention_mask": torch.ones(1, 1, SIDE, SIDE, dtype=torch.int64)}
    sized = {"image_sizes": torch.tensor([[SIDE, SIDE]])}
    whole = {"pixel_mask": torch.ones(1, SIDE, SIDE, dtype=torch.bool)}
    size = 3 * PATCH**2
    known: list[tuple[tuple[int, ...], dict[str, torch.Tensor]]] = [
        *[((num_patches, width), grid) for width in (2 * size, size)],
        ((num_patches, 3, PATCH, PATCH), grid),
        ((1, num_patches, 3, PATCH, PATCH), grid),
        ((1, num_patches, size), patches),
        ((1, num_patches, size), {"image_position_ids": places}),
        ((1, 3, PATCH, PATCH * num_patches), {"target_sizes": torch.tensor([[4, 4]])}),
        ((1, 3, SIDE, SIDE), {"high_res_pixel_values": torch.ones(1, 3, SIDE, SIDE)}),
        ((1, 3, SIDE, SIDE), sized),
        ((1, 2, 3, SIDE, SIDE), sized),
        ((1, 1, 3, SIDE, SIDE), masked),
        ((1, 3, SIDE, SIDE), whole),
        ((1, 3, SIDE, SIDE), {}),
        ((1, 1, 3, SIDE, SIDE), {}),
    ]
    for shape, beside in known:
        taken = {name: tensor for name, tensor in beside.items() if name in takes}
        if taken or not beside:
            yield StandIn(shape, taken)


def _class(kind: str) -> Any:
    return getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind])


def _config(kind: str) -> Any:
    config = transformers.CONFIG_MAPPING[kind](**GIVEN.get(kind, {}))
    whole, text, vision = OWN.get(kind, ({}, {}, {}))
    has_grid = "image_grid_thw" in inspect.signature(_class(kind).forward).parameters
    parts = {name: part for name in type(config).sub_configs if (part := getattr(config, name, None)) is not None}
    for name, part in parts.items():
        is_text = any(word in name for word in OF_TEXT)
        own = text if is_text else vision
        numbers = {**text_options(), **TEXT, **own} if is_text else {**VISION, **own}
        for inner in (part, *(getattr(part, inner) for inner in type(part).sub_configs)):
            _shrink(inner, numbers)
        if is_text and has_grid and "rope_parameters" in vars(part) and "rope_parameters" not in own:
            axes: dict[str, Any] = {"mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
            part.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, **(part.rope_parameters or {}), **axes}
    if not any(word in name for name in parts for word in OF_TEXT):
        _shrink(config, {**text_options(), **TEXT})
    end = tokenizer().eos_token_id
    ids = {name: tokenizer().convert_tokens_to_ids(token) for name, token in TOKENS.items()}
    if kind.endswith("omni_thinker") or kind.endswith("omni_moe_thinker"):  # whose config has it in checkpoints alone
        config.vision_start_token_id = ids["vision_start_token_id"]
    _shrink(config, {**WHOLE, "vocab_size": len(tokenizer()), "eos_token_id": end, "pad_token_id": end, **ids, **whole})
    return config


def _shrink(config: Any, numbers: dict[str, Any]) -> None:
    """Set the numbers that a config has."""
    known, other_names = vars(config), getattr(config, "attribute_map", {})
    for name, value in numbers.items():
        if name in other_names or (name in known and (known[name] is not None or name in ("sliding_window", *TOKENS))):
            setattr(config, name, value)
    if vars(config).get("kv_lora_rank") is not None:
        config.num_key_value_heads = known["num_attention_heads"]
    for name in ("mlp_layer_types", "no_rope_layers", "moe_layers", "layer_types"):
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and len(kinds) > 2:
            different = list(dict.fromkeys(kinds)) if name == "layer_types" else kinds
            setattr(config, name, (different * 2)[:2])
