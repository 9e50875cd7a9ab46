"""`cache_of_rows`, `with_cache`: the keys and values of a state's rows as a `DynamicCache` of transformers, left-padded with zeros, and
rows that take theirs from one. Both copy. A cache is accepted only if its layers are plain (no sliding windows, no recurrent states), and
the last 8 cached tokens of each row, fed again, get the same keys and values up to rounding (a beam search returns another cache). All
others are fed again, too, in parts: those that get others, such as those of an image, and all before them are pinned, and so never
computed again. Models whose keys depend on the length of the text cannot be checked: all tokens are pinned, unless it is said that they
need not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from outlines_cont.checks import check, check_model
from outlines_cont.errors import OptionError, UnsupportedModel
from outlines_cont.interfaces import BufferStore, LanguageModel
from outlines_cont.kv.buffer import FOREIGN, Buffer
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.state.row import StateRow

# How many of the last cached tokens of each row are fed once more, to check that the cache is that of the row.
_CHECKED_TOKENS = 8
# How many tokens are fed together, to find those that do not follow from their ids.
_PART = 512
# Relative errors that rounding explains.
_TOLERANCE = {torch.float64: 1e-2, torch.float32: 1e-2}
_HALF_TOLERANCE = 0.25
_BEAMS = (
    "After a search with beams the cache is that of the beams, not that of the rows: continue the texts, as prompts."
)
_IMAGES = (
    "If it has an image, or other embeddings than those of the ids, that near its end, pass `recomputable=False`; the last token must be "
    "one of text where the cache has all of them."
)


def cache_of_rows(model: LanguageModel, rows: Sequence[StateRow]) -> DynamicCache | None:
    """Return the keys and values of R rows, left-padded; see `SequenceState.kv_cache`. Cost: one copy."""
    _check_has_kv(model)
    width = max((len(row.token_ids) for row in rows), default=0)
    length = width - max([1, *(len(row.token_ids) - row.cached for row in rows)])
    if length <= 0 or not rows or model.is_recurrent:
        return None
    shares = [row.kv[: max(length - (width - len(row.token_ids)), 0)] if row.kv is not None else None for row in rows]
    return to_dynamic_cache(shares, length)


def to_dynamic_cache(rows: Sequence[RowKV | None], width: int) -> DynamicCache:
    """Return a cache of rows, at least one of which has tokens, left-padded with zeros to `width` columns; None is only padding."""
    lines = [row.layers() if row is not None else [] for row in rows]
    cache = DynamicCache()
    for index, like in enumerate(next(line for line in lines if line)):
        layer: DynamicLayer = DynamicLayer()  # type: ignore[no-untyped-call]
        if like is not None:
            pairs = [line[index] if line else None for line in lines]
            keys, values = (_padded([pair[i] if pair else None for pair in pairs], like[i], width) for i in (0, 1))
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _padded(rows: Sequence[torch.Tensor | None], like: torch.Tensor, width: int) -> torch.Tensor:
    heads, _, size = like.shape
    out = like.new_zeros((len(rows), heads, width, size))
    for index, row in enumerate(rows):
        if row is not None:
            out[index, :, width - row.shape[1] :] = row
    return out


def checked_mask(
    model: LanguageModel, token_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> NDArray[np.bool_]:
    """Return where (R, T) ids are tokens, not padding; raise where the model has no keys and values, or the shapes do not fit."""
    check_model(model)
    _check_has_kv(model)
    for name, given in (("token_ids", token_ids), ("attention_mask", attention_mask)):
        holds = isinstance(given, torch.Tensor) or (given is None and name == "attention_mask")
        check(name, given, holds, "a tensor (rows, tokens)", "Write `torch.tensor([[...]])`.")
    mask = torch.ones_like(token_ids) if attention_mask is None else attention_mask
    _check_shape(token_ids, mask, model.vocab_size)
    return mask.cpu().numpy().astype(bool)


def with_cache(
    model: LanguageModel,
    rows: Sequence[StateRow],
    cache: DynamicCache,
    mask: NDArray[np.bool_],
    recomputable: bool | None = None,
) -> list[StateRow]:
    """Return the rows that transformers has fed with copies of their keys and values; see `SequenceState.from_cache`."""
    check("cache", cache, isinstance(cache, Cache), "a cache of transformers, such as `DynamicCache()`,")
    length = min(cache.get_seq_length(), mask.shape[1])
    shares = from_dynamic_cache(model.kv_store, cache, mask[:, :length])
    found = [replace(row, kv=share) for row, share in zip(rows, shares, strict=True)]
    buffers = {buffer for share in shares if share is not None for buffer in share.buffers}
    for buffer in buffers:
        buffer.users.add(cache)  # so that none is evicted meanwhile
    try:
        counts = _pinned(model, found, recomputable)
    finally:
        for buffer in buffers:
            buffer.users.discard(cache)
    return [
        replace(row, pinned=count, kv=row.kv and row.kv.pinned(count)) for row, count in zip(found, counts, strict=True)
    ]


def from_dynamic_cache(store: BufferStore, cache: Cache, mask: NDArray[np.bool_]) -> list[RowKV | None]:
    """Return the keys and values of each row of `cache` (R rows, C columns) where `mask` (R, C) is True; None for a row without tokens.

    Raises:
        UnsupportedModel: a layer is of another kind, such as one with a sliding window, which drops old tokens.
        OptionError: the cache has another number of rows or columns than the mask.
    """
    # Exact types: layers with a recurrent state derive from DynamicLayer.
    odd = sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer})
    if odd:
        raise UnsupportedModel(
            f"expected plain layers (DynamicLayer) in the cache, got {odd}. Make it with `DynamicCache()`, without a config."
        )
    buffer = Buffer(store.reserve, mask.shape[0], FOREIGN)
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            shape = (layer.keys.shape[0], layer.keys.shape[2])
            if shape != mask.shape:
                raise OptionError(
                    f"the cache does not fit the ids: expected {mask.shape[0]} rows and {mask.shape[1]} columns in the cache, got "
                    f"{shape}. {_BEAMS}",
                    "cache",
                )
            buffer.write(index, 0, layer.keys, layer.values)
    lines = [np.flatnonzero(row) for row in mask]
    return [RowKV((KVPart(buffer, row, columns),)) if len(columns) else None for row, columns in enumerate(lines)]


def _pinned(model: LanguageModel, rows: Sequence[StateRow], recomputable: bool | None) -> list[int]:
    """Return how many of the first tokens of each row are pinned, see `StateRow`; raise `OptionError` for a cache of other tokens.

    Tokens of the cache are fed once more, after the keys and values that it has of those before them. Where they then have others than in
    the cache, these do not follow from the ids: they are those of other tokens, or of an image. (Those of deep layers depend on all
    tokens before, so that the cache of another row is detected by its last tokens, such as that of a beam.)
    """
    wholly = [row.kv is not None and row.cached == len(row.token_ids) for row in rows]
    if not model.can_reuse:  # keys depend on the length of the text, so that nothing can be compared
        return [0 if recomputable else row.cached - is_whole for row, is_whole in zip(rows, wholly, strict=True)]
    # The last token of a row without others to feed is always fed again.
    counts = [_CHECKED_TOKENS if recomputable is not False else int(is_whole) for is_whole in wholly]
    errors = _errors(model, rows, [max(row.cached - count, 0) for row, count in zip(rows, counts, strict=True)])
    for number, error in enumerate(errors):
        if not error < _tolerance(model):
            raise OptionError(
                f"expected a cache of the rows in `token_ids`, but that of row {number} is of other tokens or of another model: its last "
                f"tokens, fed once more, have other keys and values (by {error:.2g} of their size). {_BEAMS} {_IMAGES}",
                "cache",
            )
    if recomputable is not None:
        return [0 if recomputable else row.cached - is_whole for row, is_whole in zip(rows, wholly, strict=True)]
    return _found_pinned(model, rows)


def _found_pinned(model: LanguageModel, rows: Sequence[StateRow]) -> list[int]:
    """Return the same, by feeding all cached tokens, from the last part to the first that has other keys and values, which is bisected."""
    stops = [row.cached for row in rows]
    pinned = [0] * len(rows)
    while any(stops):
        starts = [max(stop - _PART, 0) for stop in stops]
        parts = [_first(row, stop) for row, stop in zip(rows, stops, strict=True)]
        errors = _errors(model, parts, starts)
        for number, (start, error) in enumerate(zip(starts, errors, strict=True)):
            if not error < _tolerance(model):
                pinned[number] = _bisected(model, parts[number], start)
                starts[number] = 0
        stops = starts
    return pinned


def _bisected(model: LanguageModel, row: StateRow, low: int) -> int:
    """Return the least number of tokens after which all others follow from their ids; more than `low`."""
    high = row.cached
    while high - low > 1:
        middle = (low + high) // 2
        (error,) = _errors(model, [row], [middle])
        low, high = (low, middle) if error < _tolerance(model) else (middle, high)
    return high


def _first(row: StateRow, count: int) -> StateRow:
    """Return the row of the first `count` tokens, to be fed."""
    return replace(row, token_ids=row.token_ids[:count], kv=row.kv[:count] if row.kv is not None and count else None)


def _errors(model: LanguageModel, rows: Sequence[StateRow], starts: Sequence[int]) -> list[float]:
    """Return the largest relative error of the cached tokens of each row from index `starts[i]` on, fed once more; 0 for none."""
    errors = [0.0] * len(rows)
    fed = [
        (number, row, start) for number, (row, start) in enumerate(zip(rows, starts, strict=True)) if start < row.cached
    ]
    # Pinned, so that those before them are the given ones, and none with the same ids.
    begun = [replace(_first(row, row.cached), kv=row.kv and row.kv[:start], pinned=start) for _, row, start in fed]
    for (number, row, start), found in zip(fed, model.prefilled(begun), strict=True):
        assert row.kv is not None
        assert found.kv is not None
        layers = zip(*(kv.between(start, row.cached).layers() for kv in (row.kv, found.kv)), strict=True)
        errors[number] = max(
            _error(*pair) for given, anew in layers if given and anew for pair in zip(given, anew, strict=True)
        )
    return errors


def _tolerance(model: LanguageModel) -> float:
    return _TOLERANCE.get(model.dtype, _HALF_TOLERANCE)


def _error(given: torch.Tensor, found: torch.Tensor) -> float:
    """Return the largest relative error of a token, of (H, T, D) keys or values."""
    difference = (given.detach() - found).double().norm(dim=(0, 2)) / found.double().norm(dim=(0, 2)).clamp_min(1e-30)
    return float(difference.nan_to_num(nan=float("inf")).max())


def _check_has_kv(model: LanguageModel) -> None:
    if not model.has_kv:
        raise UnsupportedModel(
            f"expected a model with keys and values that transformers could continue, got {model!r}, a function of token ids. Continue "
            "with the ids: `state.token_ids`, or a prompt of ids."
        )


def _check_shape(token_ids: torch.Tensor, mask: torch.Tensor, vocab_size: int) -> None:
    if token_ids.dim() != 2 or mask.shape != token_ids.shape or not token_ids.numel():
        raise OptionError(
            f"expected `token_ids` and `attention_mask` of one shape (rows, tokens), got {tuple(token_ids.shape)} and "
            f"{tuple(mask.shape)}. The mask of a prompt lacks the columns that were written since: join 1 for each token to it, 0 behind "
            "the end of a row.",
            "token_ids",
        )
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
        raise OptionError(f"expected token ids from 0 to {vocab_size - 1} in `token_ids`", "token_ids")
