"""`cache_of_rows`, `rows_of_cache`: the rows of a state as a left-padded `DynamicCache` of transformers, and rows from one, by copy. A
cache is taken only if the last 8 cached tokens of each row, fed again, get the same keys and values up to rounding (a beam search
returns another one); models whose keys depend on the length of the text are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import DynamicCache

from outlines_cont.errors import OptionError, UnsupportedModel
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.dynamic_cache import from_dynamic_cache, to_dynamic_cache
from outlines_cont.sampling.random_stream import RandomStream, Rng, open_seeds
from outlines_cont.state.prompt_row import prompt_row
from outlines_cont.state.row import StateRow

# So many of the last cached tokens of each row are fed once more, to see that the cache is theirs.
_CHECKED_TOKENS = 8
# Relative errors that rounding explains.
_TOLERANCE = {torch.float64: 1e-2, torch.float32: 1e-2}
_HALF_TOLERANCE = 0.25


def cache_of_rows(model: LanguageModel, rows: Sequence[StateRow]) -> DynamicCache | None:
    """Return the keys and values of R rows, left-padded; see `SequenceState.kv_cache`. Cost: one copy."""
    _check_has_kv(model)
    width = max((len(row.token_ids) for row in rows), default=0)
    length = width - max([1, *(len(row.token_ids) - row.cached for row in rows)])
    if length <= 0 or not rows or model.is_recurrent:
        return None
    shares = [row.kv[: max(length - (width - len(row.token_ids)), 0)] if row.kv is not None else None for row in rows]
    return to_dynamic_cache(shares, length)


def rows_of_cache(
    model: LanguageModel, token_ids: torch.Tensor, cache: DynamicCache, attention_mask: torch.Tensor | None, rng: Rng
) -> tuple[list[StateRow], int | tuple[int, ...]]:
    """Return the rows that transformers has fed, with copies of their keys and values, and their seeds; see `SequenceState.from_cache`."""
    _check_has_kv(model)
    mask = torch.ones_like(token_ids) if attention_mask is None else attention_mask
    num_rows, width = _checked_shape(token_ids, mask, model.vocab_size)
    seeds, own = open_seeds(rng, num_rows)
    length = min(cache.get_seq_length(), width)
    seen = mask.cpu().numpy().astype(bool)
    try:
        shares = from_dynamic_cache(model.kv_store, cache, seen[:, :length])
    except UnsupportedModel:
        raise
    except ValueError as error:
        raise OptionError(
            f"the cache does not fit the ids: {error}. After a search with beams the cache is that of the beams, not that of the rows: "
            "go on with the texts, as prompts.",
            "cache",
        ) from error
    rows = []
    for number, (ids, share) in enumerate(zip(token_ids.tolist(), shares, strict=True)):
        stream = RandomStream(seeds[number], 0 if own else number)
        kept = [token_id for token_id, real in zip(ids, seen[number], strict=True) if real]
        rows.append(replace(prompt_row(kept, model, stream), kv=share))
    _check_cache(model, rows)
    return rows, tuple(seeds) if own else seeds[0]


def _check_cache(model: LanguageModel, rows: Sequence[StateRow]) -> None:
    """Raise `OptionError` where the last cached tokens of a row, fed once more, have other keys and values than the cache has.

    Those of deep layers depend on all tokens before, so that the cache of another row is found out, such as that of a beam. Models whose
    keys and values depend on the length of the text are not checked.
    """
    held = [(number, row, row.kv, max(row.cached - _CHECKED_TOKENS, 0)) for number, row in enumerate(rows) if row.kv]
    if not held or not model.can_reuse:
        return
    begun = [replace(row, token_ids=row.token_ids[: row.cached], kv=kv[:start]) for _, row, kv, start in held]
    for (number, row, kv, start), fed in zip(held, model.prefilled(begun), strict=True):
        assert fed.kv is not None
        layers = zip(*(share.between(start, row.cached).layers() for share in (kv, fed.kv)), strict=True)
        error = max(
            _error(*pair) for given, found in layers if given and found for pair in zip(given, found, strict=True)
        )
        if not error < _TOLERANCE.get(model.dtype, _HALF_TOLERANCE):
            raise OptionError(
                f"expected a cache of the rows in `token_ids`, but that of row {number} is of other tokens or of another model: its last "
                f"tokens, fed once more, have other keys and values (by {error:.2g} of their size). After a search with beams the cache "
                "is that of the beams, not that of the rows: go on with the texts, as prompts.",
                "cache",
            )


def _error(given: torch.Tensor, found: torch.Tensor) -> float:
    """Return the largest relative error of a token, of (H, T, D) keys or values."""
    difference = (given.detach() - found).double().norm(dim=(0, 2)) / found.double().norm(dim=(0, 2)).clamp_min(1e-30)
    return float(difference.nan_to_num(nan=float("inf")).max())


def _check_has_kv(model: LanguageModel) -> None:
    if not model.has_kv:
        raise UnsupportedModel(
            f"expected a model with keys and values that transformers could go on with, got {model!r}, a function of token ids. Go on with "
            "the ids: `state.token_ids`, or a prompt of ids."
        )


def _checked_shape(token_ids: torch.Tensor, mask: torch.Tensor, vocab_size: int) -> tuple[int, int]:
    if token_ids.dim() != 2 or mask.shape != token_ids.shape or not token_ids.numel():
        raise OptionError(
            f"expected `token_ids` and `attention_mask` of one shape (rows, tokens), got {tuple(token_ids.shape)} and "
            f"{tuple(mask.shape)}. The mask of a prompt lacks the columns that were written since: join 1 for each token to it, 0 behind "
            "the end of a row.",
            "token_ids",
        )
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
        raise OptionError(f"expected token ids from 0 to {vocab_size - 1} in `token_ids`", "token_ids")
    return token_ids.shape[0], token_ids.shape[1]
