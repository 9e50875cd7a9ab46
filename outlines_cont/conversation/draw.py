"""`draw_tokens`: draws one token per row from its logits, or from given scores, under its mask, as one batch with the random stream of
each row. Log-probabilities by the model and as drawn are returned with it. Where one row cannot be drawn, nothing is: `DeadEnd` (no
allowed token has a probability) or `InvalidLogits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from outlines_cont.conversation.content import Drawn
from outlines_cont.engine.drawing.drawing import draw_with, drawing_of
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DeadEnd, InvalidLogits, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.samplers import greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import StateRow

_TAIL_TOKENS = 8
_SCORES = torch.float32, torch.float64


def checked_sampler(sampler: Sampler | None) -> Sampler:
    """Return the sampler, `greedy()` for None; `OptionError` if it draws several tokens, or is a search."""
    if sampler is None:
        return greedy()
    if hasattr(sampler, "sample") and (sampler.num_samples or 1) == 1:
        return sampler
    advice = " For several samples write `conversation.fork(n)`." if hasattr(sampler, "sample") else ""
    raise OptionError(
        f"expected a sampler that draws one token, such as `samplers.multinomial()`, got {sampler!r}.{advice}",
        "sampler",
    )


def draw_tokens(
    model: LanguageModel,
    masker: Masker,
    rows: Sequence[StateRow],
    masks: Sequence[TokenSet],
    sampler: Sampler,
    scores: torch.Tensor | None,
) -> list[Drawn]:
    """Return the token that is drawn for each of R rows, one or more, whose logits are known, under its mask; the rows are not changed.

    `scores` are (R, V) to draw from instead of the logits; `OptionError` for another shape or type. Raises `InvalidLogits` or
    `DeadEnd` if nothing can be drawn for one of the rows.
    """
    logits = torch.stack([row.logits for row in rows if row.logits is not None])
    _check_scores(scores, logits)
    norm = logits.logsumexp(dim=-1)
    masked = masker.masked(logits if scores is None else scores, masks)
    streams = [row.stream.open() for row in rows]
    uniforms = [stream.draw() for stream in streams] if sampler.needs_random else None
    drawing = drawing_of(sampler)
    drawn = draw_with(drawing, masked, uniforms, [drawing.counts_of(row) for row in rows])
    logprobs = logits.gather(-1, drawn.token_ids[:, None])[:, 0] - norm
    table = torch.stack([norm, logprobs, drawn.logprobs.to(norm)]).T.tolist()
    for row, (total, _, sampled) in zip(rows, table, strict=True):
        _check_draw(model, row, total, sampled)
    model.count(Meter(sampled_tokens=len(rows)))
    return [
        Drawn(token_id, logprob, sampled, stream.close(), drawing.has_mirostat)
        for token_id, (_, logprob, sampled), stream in zip(drawn.token_ids.tolist(), table, streams, strict=True)
    ]


def _check_draw(model: LanguageModel, row: StateRow, total: float, sampled: float) -> None:
    if math.isfinite(total) and math.isfinite(sampled):
        return
    tail = model.tokenizer.decode(row.token_ids[-_TAIL_TOKENS:])
    after = f"{len(row.token_ids)} tokens (...{tail!r})"
    if not math.isfinite(total):
        raise InvalidLogits(f"expected finite logits from the model after {after}, got NaN or an infinity.")
    raise DeadEnd(
        f"no token that may be drawn has a probability after {after}. Loosen the mask or the constraint; a constraint that "
        "is fulfilled needs a model with an end-of-sequence token, or `constrain(None)`."
    )


def _check_scores(scores: object, logits: torch.Tensor) -> None:
    if scores is None or (
        isinstance(scores, torch.Tensor) and scores.shape == logits.shape and scores.dtype in _SCORES
    ):
        return
    shape, dtype = getattr(scores, "shape", None), getattr(scores, "dtype", None)
    got = type(scores).__name__ if shape is None else f"one of shape {tuple(shape)} and {dtype}"
    raise OptionError(
        f"expected a tensor of float32 or float64 of shape {tuple(logits.shape)} as `scores`, a row for each conversation, got {got}.",
        "scores",
    )
