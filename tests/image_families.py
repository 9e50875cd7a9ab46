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

TYPES = sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
_MAX_PARAMETERS = 20_000_000
_SIDE, _PATCH = 16, 4
_COUNTS = (4, 16, 1, 64, 5, 17, 8, 2, 36, 6)  # of the tokens of an image
_TOKENS = {
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>", "video_token_id": "<|video_pad|>",
    "image_start_token_id": "<|vision_start|>", "image_end_token_id": "<|vision_end|>", "boi_token_id": "<start_of_image>",
    "eoi_token_id": "<end_of_image>", "video_start_token_id": "[IMG]", "video_end_token_id": "[IMG_END]",
    "image_start_id": "<|vision_start|>", "image_end_id": "<|vision_end|>",
    "image_token_id": "<image>", "image_token_index": "<image>", "video_token_index": "<|video_pad|>",
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "word_embed_proj_dim": 32, "ffn_dim": 64, "intermediate_size_mlp": 64, "dense_intermediate_size": 64, "sliding_window": 9,
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "global_head_dim": 8, "unpadded_vocab_size": len(tokenizer()),
    # Experts.
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2,
    # Latent and linear attention.
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_n_heads": 2,
    "index_head_dim": 8, "index_topk": 64, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "embed_dim": 32, "width": 32, "d_model": 32, "intermediate_size": 64, "mlp_dim": 64, "num_hidden_layers": 2,
    "num_layers": 2, "depth": 2, "layers": 2, "encoder_layers": 2, "num_attention_heads": 2, "num_heads": 2, "heads": 2,
    "attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "image_size": _SIDE, "patch_size": _PATCH,
    "out_hidden_size": 32, "output_channels": 32, "projection_dim": 32, "text_hidden_size": 32, "encoder_hidden_size": 32,
    "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32, "mm_hidden_size": 32, "global_attn_indexes": [1],
    "num_position_embeddings": 16, "deepstack_visual_indexes": [0], "fullatt_block_indexes": [1], "spatial_merge_size": 2,
    "temporal_patch_size": 2, "pixel_shuffle_ratio": 0.5, "window_size": 16, "position_embedding_size": 16,
}  # fmt: skip
_WHOLE: dict[str, Any] = {
    "hidden_size": 32, "projection_dim": 32, "projector_hidden_size": 32, "mm_tokens_per_image": 4, "downsample_ratio": 0.5,
    "vision_feature_layer": -1, "bos_token_id": 0,
}  # fmt: skip
_CODES: dict[str, Any] = {
    "num_embeddings": 8, "codebook_size": 8, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1,
    "image_token_embed_dim": 32,
}  # fmt: skip
"""Of pictures as codes: eight of them, and few channels."""
_SAM: dict[str, Any] = {"window_size": 2, "patch_size": 2, "initializer_range": 0.02}
# Of types whose numbers depend on each other: of the whole, of the texts, of the images.
_OWN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "aria": ({"projector_patch_to_query_dict": {16: 4}}, {}, {}),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), ({}, {}, _SAM)),
    "gemma4_unified": ({}, {}, {"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 32, "output_proj_dims": 32}),
    "kimi_k25": ({"projection_hidden_size": 32}, {}, {}),
    **dict.fromkeys(("muse_glimmer", "muse_spark"), ({"out_hidden_size": 128}, {}, {})),
    "janus": ({}, {}, _CODES),
    "internvl": ({}, {}, {"image_size": [16, 16], "patch_size": [4, 4]}),
    "qianfan_ocr": ({}, {}, {"image_size": [16, 16], "patch_size": [4, 4]}),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), ({"image_grid_pinpoints": [[16, 16]]}, {}, {})),
    "ernie4_5_vl_moe": ({}, {"moe_intermediate_size": [32, 32]}, {}),
    "chameleon": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32}),
    "apertus1p5": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32}),
    "emu3": ({}, {}, {**_CODES, "embed_dim": 32, "latent_channels": 32, "hidden_size": 32, "temporal_downsample_factor": 2}),
    "cohere_compass": ({}, {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}}, {}),
    "nemotron_h_omni": ({"vision_hidden_size": 32}, {}, {"patch_size": 16}),
    "mistral4": ({"head_dim": 16}, {}, {}),
    "dots3_note": ({}, {"head_dim": 16}, {}),
    "fuyu": ({"patch_size": _PATCH, "image_size": _SIDE}, {}, {}),
    "granite4_vision": ({"image_grid_pinpoints": [[16, 16]], "projector_dropout": 0.0}, {}, {}),
    "mllama": ({}, {"cross_attention_layers": [1]}, {"intermediate_layers_indices": [0, 1], "num_global_layers": 1, "vision_output_dim": 96}),
    "minimax_m3_vl": ({"merged_hidden_size": 128}, {}, {"hidden_size": 24}),
    "molmo2": ({}, {}, {"image_size": [_SIDE, _SIDE], "vision_feature_layer": [1, 0]}),
    **dict.fromkeys(("deepseek_ocr2", "unlimited_ocr"), ({}, {}, {**_SAM, "downsample_channels": [32, 32]})),
    "gemma3n": ({"vision_soft_tokens_per_image": 4}, {"intermediate_size": [64, 64], "activation_sparsity_pattern": [0.0, 0.0]}, {"hidden_size": 64}),
    "fast_vlm": ({}, {}, {"hidden_size": 64}),
    "llama4": ({}, {}, {"intermediate_size": 128}),
    "git": ({"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}, {}, {}),
}
_ID = tokenizer().convert_tokens_to_ids("<image>")
_OF_TEXT = ("text", "llm", "language")
# What configs are made with, as it is None otherwise.
_GIVEN: dict[str, dict[str, Any]] = {
    **{kind: {"vision_config": {}} for kind in ("gemma4", "gemma4_unified")},
    "hunyuan_vl": {"text_config": {"head_dim": 8}},
    "chameleon": {"vocabulary_map": {"<image>": _ID, **{f"IMGIMG{'ABCDEFGH'[i]}Z": 300 + i for i in range(8)}}},
    "emu3": {"vocabulary_map": {"<image>": _ID, "<|extra_200|>": 310, **{f"<|visual token {i:06}|>": 300 + i for i in range(8)}}},
    "gemma3n": {
        "text_config": {"num_hidden_layers": 2, "intermediate_size": 64, "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "vocab_size_per_layer_input": len(tokenizer())},
        "vision_config": {"architecture": "test_convnext", "hidden_size": 64},
        "audio_config": {"hidden_size": 32, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1, "input_feat_size": 16, "sscp_conv_channel_size": [4, 4]},
    },
    "fast_vlm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "test_convnext", "hidden_size": 64}},
    "perception_lm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "test_vit", "model_args": {"img_size": 32, "embed_dim": 64}}},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1], "downsample_rate": "1/2"},
    "mllama": {"text_config": {"num_hidden_layers": 2, "cross_attention_layers": [1]}, "vision_config": {"intermediate_layers_indices": [0, 1]}},
    "qwen4_exp": {"text_config": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"], "hidden_size": 32, "head_dim": 8, "hc_lowrank": 4, "hc_count": 2,
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 64, "indexer_compress_ratio": 2}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_hidden_layers": 2, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}},
    "apertus1p5": {
        "text_config": {"vocab_size": len(tokenizer())}, "image_token_offset": 300, "audio_token_offset": 308,
        "vision_config": {**_CODES, "embed_dim": 32, "latent_channels": 32, "attn_resolutions": []},
        "audio_config": {"model_type": "wavtokenizer_encoder", "codebook_size": 8, "codebook_dim": 8, "hidden_size": 8, "num_filters": 4, "num_lstm_layers": 1},
    },
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}, "vision_config": {"model_type": "gemma4_vision"}},
    "evolla": {
        "protein_encoder_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}, "resampler_depth": 1,
        "resampler_dim_head": 8, "resampler_heads": 2, "resampler_num_latents": 4, "aligner_num_add_layers": 1},
    "mistral4": {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "molmo2": {"text_config": {"num_hidden_layers": 2}, "adapter_config": {"vision_feature_layer": [1, 0]}},
    "dots3_note": {
        "text_config": {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32, "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 16, "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8,
            "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16, "head_dim": 16, "index_head_dim": 8,
            "index_n_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": len(tokenizer()), "intermediate_size": 64, "moe_intermediate_size": 32,
            "shared_experts_intermediate_size": 32},
        "vision_config": {"adapter_in_dim": 32, "hidden_size": 32, "adapter_out_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
            "moe_intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "router_scaling_factor": 1.0, "mlp_layer_types": ["dense", "sparse"], "patch_size": 4},
        "audio_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "adapter_input_size": 32, "adapter_out_dim": 32, "intermediate_size": 64, "downsample_hidden_size": 8},
    },
}


_ONE = {"image_grid_thw": torch.tensor([[1, 4, 4]])}
_LARGE = (1, 3, 64, 64)
_GRID = torch.tensor([[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]])
# Of types whose tensors are of no other.
_LAYOUTS: dict[str, tuple[int, tuple[int, ...], dict[str, torch.Tensor]]] = {
    "gemma3n": (4, _LARGE, {}),
    "fast_vlm": (4, _LARGE, {}),
    "perception_lm": (4, (1, 1, 3, 32, 32), {}),
    "fuyu": (16, (1, 16, 3 * _PATCH**2), {}),
    "molmo2": (4, (1, 16, 3 * _PATCH**2), {"image_token_pooling": _GRID, "image_grids": torch.tensor([[2, 2, 0, 0]])}),
    "granite_docling": (4, (1, 1, 3, _SIDE, _SIDE), {"pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool)}),
    "apertus1p5": (64, (1, 3, _SIDE, _SIDE), {"image_sizes": torch.tensor([[_SIDE, _SIDE]])}),
    "emu3": (72, (1, 3, _SIDE, _SIDE), {"image_sizes": torch.tensor([[_SIDE, _SIDE]])}),
    "mllama": (1, (1, 1, 4, 3, _SIDE, _SIDE), {"aspect_ratio_ids": torch.tensor([[1]]), "aspect_ratio_mask": torch.tensor([[[1, 0, 0, 0]]])}),
    **dict.fromkeys(("inkling2", "inkling2_loop"), (4, (4, 8, 8, 3), {"image_grid_thw": torch.tensor([[1, 2, 2]])})),
    "granite4_vision": (10, (1, 2, 3, _SIDE, _SIDE), {"image_sizes": torch.tensor([[_SIDE, _SIDE]])}),
    "deepseek_ocr2": (145, (1, 3, _SIDE, _SIDE), {}),
    "unlimited_ocr": (7, (1, 3, _SIDE, _SIDE), {}),
    "dots3_note": (4, (16, 3 * _PATCH**2), _ONE),
    **dict.fromkeys(("qwen4_exp", "minimax_m3_vl"), (4, (16, 6 * _PATCH**2), _ONE)),
    "minicpmv4_7": (1, (1, 3, _PATCH, 16 * _PATCH), {"target_sizes": torch.tensor([[4, 4]])}),
    "inkling_mm_model": (4, (4, 2, _PATCH, _PATCH, 3), {}),
    "nemotron_h_omni": (4, (16, 768), {"image_grid_hw": torch.tensor([[4, 4]])}),
}


_AROUND = ("minicpmv4_7", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
"""Types whose positions are those of an image between two tokens."""


class StandIn:
    """The pixels of an image in one layout, as the processor of a family would return them."""

    def __init__(self, shape: tuple[int, ...], beside: dict[str, torch.Tensor]) -> None:
        self._shape, self._beside = shape, beside

    def __call__(self, images: list[Any], **options: Any) -> dict[str, torch.Tensor]:
        """Return the tensors of one image."""
        image = images[0] if isinstance(images[0], Image.Image) else Image.fromarray(images[0])
        values = np.asarray(image.resize((_SIDE, _SIDE)), dtype=np.float32).transpose(2, 0, 1).reshape(-1) / 128 - 1
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
    known, around = _LAYOUTS.get(kind), ("<|vision_start|>", "<|vision_end|>") if kind in _AROUND else ("", "")
    own = [getattr(made.config, f"vision_{side}_token_id", None) is None for side in ("start", "end")]  # which the reader writes if it is known
    left, right = (tokenizer()(one, add_special_tokens=False)["input_ids"] for one in around)
    for pixels in _layouts(made) if known is None else [StandIn(*known[1:])]:
        for count in _COUNTS if known is None else known[:1]:
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
    takes, num_patches = inspect.signature(made.forward).parameters, (_SIDE // _PATCH) ** 2
    places = torch.tensor([[[x, y] for y in range(_SIDE // _PATCH) for x in range(_SIDE // _PATCH)]])
    grid = {"image_grid_thw": torch.tensor([[1, 4, 4]]), "image_merge_sizes": torch.tensor([2])}
    patches = {"spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": torch.ones(1, num_patches, dtype=torch.int64)}
    masked = {"pixel_attention_mask": torch.ones(1, 1, _SIDE, _SIDE, dtype=torch.int64)}
    sized = {"image_sizes": torch.tensor([[_SIDE, _SIDE]])}
    whole = {"pixel_mask": torch.ones(1, _SIDE, _SIDE, dtype=torch.bool)}
    size = 3 * _PATCH**2
    known: list[tuple[tuple[int, ...], dict[str, torch.Tensor]]] = [
        *[((num_patches, width), grid) for width in (2 * size, size)],
        ((num_patches, 3, _PATCH, _PATCH), grid),
        ((1, num_patches, 3, _PATCH, _PATCH), grid),
        ((1, num_patches, size), patches),
        ((1, num_patches, size), {"image_position_ids": places}),
        ((1, 3, _PATCH, _PATCH * num_patches), {"target_sizes": torch.tensor([[4, 4]])}),
        ((1, 3, _SIDE, _SIDE), {"high_res_pixel_values": torch.ones(1, 3, _SIDE, _SIDE)}),
        ((1, 3, _SIDE, _SIDE), sized),
        ((1, 2, 3, _SIDE, _SIDE), sized),
        ((1, 1, 3, _SIDE, _SIDE), masked),
        ((1, 3, _SIDE, _SIDE), whole),
        ((1, 3, _SIDE, _SIDE), {}),
        ((1, 1, 3, _SIDE, _SIDE), {}),
    ]
    for shape, beside in known:
        taken = {name: tensor for name, tensor in beside.items() if name in takes}
        if taken or not beside:
            yield StandIn(shape, taken)


def _class(kind: str) -> Any:
    return getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind])


def _config(kind: str) -> Any:
    config = transformers.CONFIG_MAPPING[kind](**_GIVEN.get(kind, {}))
    whole, text, vision = _OWN.get(kind, ({}, {}, {}))
    has_grid = "image_grid_thw" in inspect.signature(_class(kind).forward).parameters
    parts = {name: part for name in type(config).sub_configs if (part := getattr(config, name, None)) is not None}
    for name, part in parts.items():
        is_text = any(word in name for word in _OF_TEXT)
        own = text if is_text else vision
        numbers = {**text_options(), **_TEXT, **own} if is_text else {**_VISION, **own}
        for inner in (part, *(getattr(part, inner) for inner in type(part).sub_configs)):
            _shrink(inner, numbers)
        if is_text and has_grid and "rope_parameters" in vars(part) and "rope_parameters" not in own:
            axes: dict[str, Any] = {"mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
            part.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, **(part.rope_parameters or {}), **axes}
    if not any(word in name for name in parts for word in _OF_TEXT):
        _shrink(config, {**text_options(), **_TEXT})
    end = tokenizer().eos_token_id
    ids = {name: tokenizer().convert_tokens_to_ids(token) for name, token in _TOKENS.items()}
    if kind.endswith("omni_thinker") or kind.endswith("omni_moe_thinker"):  # whose config has it in checkpoints alone
        config.vision_start_token_id = ids["vision_start_token_id"]
    _shrink(config, {**_WHOLE, "vocab_size": len(tokenizer()), "eos_token_id": end, "pad_token_id": end, **ids, **whole})
    return config


def _shrink(config: Any, numbers: dict[str, Any]) -> None:
    """Set the numbers that a config has."""
    known, other_names = vars(config), getattr(config, "attribute_map", {})
    for name, value in numbers.items():
        if name in other_names or (name in known and (known[name] is not None or name in ("sliding_window", *_TOKENS))):
            setattr(config, name, value)
    if vars(config).get("kv_lora_rank") is not None:
        config.num_key_value_heads = known["num_attention_heads"]
    for name in ("mlp_layer_types", "no_rope_layers", "moe_layers", "layer_types"):
        kinds = vars(config).get(name)
        if isinstance(kinds, list) and len(kinds) > 2:
            different = list(dict.fromkeys(kinds)) if name == "layer_types" else kinds
            setattr(config, name, (different * 2)[:2])
