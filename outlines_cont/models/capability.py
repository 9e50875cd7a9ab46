"""`Capabilities`: which operations on the KV cache leave the logits of a model unchanged: cropping, left-padded batches, masked gaps,
shared prefixes, reuse of prefixes. Decided by the config, or by comparing the logits of a few short forwards within a tolerance
(`probe`). Encoder-decoders are refused, and recurrent models whose copied cache does not continue exactly.

Layers that drop old tokens (sliding windows) get a cache that keeps all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from outlines_cont.errors import UnsupportedModel

# Config attributes that make a mask count columns instead of positions, and families that hide such a window.
_WINDOW_ATTRIBUTES = ("attention_chunk_size", "alibi", "attention_types", "window_size", "local_attention_window")
_HOLE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
# Measured on an H100: 32 layers of width 4,096 in bfloat16 are off by 0.26 of the spread of the logits, at the worst of 32,000 tokens.
# Models of eight layers and more that do not see a prefix, or its first token, are off by 4 and more.
_HALF_TOLERANCE = 0.6
# Kinds of rotary embedding whose angles change when a text grows longer.
_LENGTH_DEPENDENT_ROPES = {"dynamic", "longrope", "su"}

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, DynamicCache, list[int]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a model supports an operation, and how that is known: a measured error or a reason."""

    holds: bool
    why: str

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which operations on the KV cache of a model leave its logits unchanged. Without one, tokens are recomputed or copied.

    Attributes:
        crop: the end of a row may be cut off; else rows are replayed from snapshots.
        stack: rows of different lengths may be left-padded into one batch; else they run one by one.
        skip: masked columns may lie between the tokens of a row; else ragged rows are packed after each step.
        branch: rows may attend to a shared prefix in place; else each has a copy.
        reuse: keys and values of one text may be used for another with the same beginning; see `model.prefix_cache`.
    """

    crop: Finding
    stack: Finding
    skip: Finding
    branch: Finding
    reuse: Finding

    def __str__(self) -> str:
        lines = [(name, getattr(self, name)) for name in ("crop", "stack", "skip", "branch", "reuse")]
        return "\n".join(f"{name:<7}{'yes' if finding else 'no':<5}{finding.why}" for name, finding in lines)


def is_recurrent(model: PreTrainedModel) -> bool:
    """Return whether some layer of `model` has other state than keys and values.

    Raises `UnsupportedModel` where it is not a decoder, or has its own kind of cache.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"expected a decoder-only model, got {name}, an encoder-decoder. {_ADVICE}")
    try:
        layers = DynamicCache(config=model.config).layers
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"the cache of {name} is unknown ({error}). {_ADVICE}") from error
    # Exact types: layers with a recurrent state derive from DynamicLayer.
    known = {type(layer).__name__ for layer in layers} <= _KNOWN_LAYERS
    return not known or bool(getattr(model, "_is_stateful", False))


def check_recurrent(model: PreTrainedModel, forward: Forward, new_cache: Callable[[], DynamicCache]) -> None:
    """Raise `UnsupportedModel` unless feeding chunks on top of a copied cache gives the logits of one forward of all tokens.

    Cost: 4 forwards of at most 13 random ids.
    """
    num_ids = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(num_ids, (1, 13), generator=torch.Generator().manual_seed(0)).to(model.device)

    def feed(cache: DynamicCache, start: int, stop: int) -> torch.Tensor:
        positions = torch.arange(start, stop, device=ids.device)[None]
        mask = torch.ones((1, stop), dtype=torch.int64, device=ids.device)
        return forward(ids[:, start:stop], mask, positions, cache, [stop - start - 1])[0, 0]

    try:
        whole = feed(new_cache(), 0, 13)
        cache = new_cache()
        feed(cache, 0, 6)
        copied = copy.deepcopy(cache)
        feed(cache, 6, 9)
        feed(copied, 6, 12)
        error = float((feed(copied, 12, 13) - whole).abs().max() / whole.std().clamp_min(1e-30))
    except Exception as failure:
        # Whatever a model does that is not ready for a cache in chunks.
        raise UnsupportedModel(
            f"{type(model).__name__} cannot go on from its cache ({failure}). {_ADVICE}"
        ) from failure
    if not error < tolerance(model.dtype):
        raise UnsupportedModel(
            f"expected {type(model).__name__} to have the same logits in chunks as at once, got an error of {error:.2g} "
            f"times their spread: its cache is not exact in this version of transformers. {_ADVICE}"
        )


_ADVICE = "Use a decoder-only model whose layers are attention with keys and values."
_KNOWN_LAYERS = {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__, "DummyLayer"}


def probe(model: PreTrainedModel, forward: Forward, branch_error: Callable[[], float]) -> Capabilities:
    """Return what `model` supports, by its config and by a few forwards of at most 13 random ids. `forward` runs it.

    `branch_error` measures the error of attending to a shared prefix in place. Cost: 12 forwards, 20 to 100 ms with a tiny model.
    """
    if is_recurrent(model):
        no = Finding(False, "a recurrent state: what was fed cannot be taken out of it")
        return Capabilities(no, no, no, no, no)
    crop = Finding(True, "keys and values of every layer")
    config: Any = model.config.get_text_config(decoder=True)
    reuse = _reuse(config)
    if getattr(config, "attention_chunk_size", None):
        no = Finding(False, "attention in chunks of columns")
        return Capabilities(crop, no, no, no, reuse)
    bound = tolerance(model.dtype)
    stacked, skipped = _probe_errors(config.vocab_size, model.device, forward)
    stack = _measured(stacked, bound)
    if _has_window(config):
        # The probe is shorter than most windows, so it could not see the harm.
        no = Finding(False, "a window, or distances, that count columns")
        return Capabilities(crop, stack, no, no, reuse)
    attention = model.config._attn_implementation
    branch = Finding(False, f"attention {attention!r}; 'sdpa' is needed")
    if attention == "sdpa":
        branch = _measured(branch_error(), bound)
    return Capabilities(crop, stack, _measured(skipped, bound), branch, reuse)


def _reuse(config: Any) -> Finding:
    """Return whether keys and values of a prefix are the same in every text that begins with it."""
    ropes = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {
        str(rope.get("rope_type", rope.get("type"))) for rope in (ropes, *ropes.values()) if isinstance(rope, dict)
    }
    odd = sorted(kinds & _LENGTH_DEPENDENT_ROPES)
    if odd:
        return Finding(False, f"rotary embedding {odd[0]!r}: its angles depend on the length of the text")
    return Finding(True, "keys and values depend on what stands before them only")


def _measured(error: float, bound: float) -> Finding:
    if math.isinf(error):
        return Finding(False, "measured: it does not read what its cache returns")
    return Finding(error < bound, f"measured: error {error:.1e} of the spread of the logits")


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of a probe, in units of the spread of the logits, that rounding explains."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return _HALF_TOLERANCE  # a GPU multiplies with as few bits as those of half precision
    return _HOLE_TOLERANCE.get(dtype, _HALF_TOLERANCE)


def _has_window(config: Any) -> bool:
    # A probe shorter than the window cannot see it, so windows are ruled out by the config.
    sliding = any(type(layer) is DynamicSlidingWindowLayer for layer in DynamicCache(config=config).layers)
    hidden = any(getattr(config, name, None) for name in (*_WINDOW_ATTRIBUTES, "sliding_window"))
    return sliding or hidden or config.model_type in ("gpt_neo", "mpt", "bloom")


def _probe_errors(vocab_size: int, device: torch.device, forward: Forward) -> tuple[float, float]:
    """Return the relative errors of a left-padded pair of rows, and of the same after a ragged chunk."""
    generator = torch.Generator().manual_seed(0)
    long = torch.randint(vocab_size, (1, 13), generator=generator).to(device)
    short = torch.randint(vocab_size, (1, 7), generator=generator).to(device)

    def alone(ids: torch.Tensor, columns: list[int]) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=device)[None]
        return forward(ids, torch.ones_like(ids), positions, DynamicCache(), columns)[0]

    # Columns:  9 tokens | 3 tokens | 1 token       of the long row
    #       4 pads, 5 tokens | 2 pads, 1 token | 1 token   of the short row
    wanted = torch.stack([alone(long, [8, 11, 12]), alone(short, [4, 5, 6])])
    ids = torch.zeros((2, 13), dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    positions = torch.zeros_like(ids)
    for row, (tokens, columns) in enumerate(((long, [*range(13)]), (short, [4, 5, 6, 7, 8, 11, 12]))):
        ids[row, columns] = tokens[0]
        mask[row, columns] = 1
        positions[row, columns] = torch.arange(len(columns), device=device)
    cache = DynamicCache()
    got = []
    for start, stop in ((0, 9), (9, 12), (12, 13)):
        part = slice(start, stop)
        columns = [stop - start - 1]
        got.append(forward(ids[:, part], mask[:, :stop], positions[:, part], cache, columns)[:, 0])
    errors = (torch.stack(got, dim=1) - wanted).abs().amax(dim=(0, 2)) / wanted.std().clamp_min(1e-30)
    # A comparison with NaN is false, so a model that breaks on padding counts as one that does not support it.
    stacked, *skipped = errors.nan_to_num(nan=float("inf")).tolist()
    return float(stacked), float(max(skipped))
