"""`drawn_states`: draws one token for each of several states of one row from its logits, or from given scores, under its mask, as one batch
with the random stream of each row, and appends it with its log-probabilities by the model and as drawn. Where one row cannot be drawn,
nothing is: `DeadEnd` (no allowed token has a probability) or `InvalidLogits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from outlines_cont.engine.drawing.drawing import draw_with, drawing_of
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DeadEnd, InvalidLogits, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.samplers import greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import GENERATED, StateRow
from outlines_cont.state.sequence_state import SequenceState

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


def drawn_states(
    model: LanguageModel,
    masker: Masker,
    states: Sequence[SequenceState],
    masks: Sequence[TokenSet],
    sampler: Sampler,
    scores: torch.Tensor | None,
    *,
    append: bool,
) -> list[tuple[int, SequenceState]]:
    """Return for each of R states, one or more, whose logits are known, the token that is drawn under its mask, and the state after it.

    The state has advanced its random stream, and has the token with `append`. `scores` are (R, V) to draw from instead of the logits;
    `OptionError` for another shape or type. Raises `InvalidLogits` or `DeadEnd` if nothing can be drawn for one of the rows, and
    `ContextLengthError` if one has no room for another token.
    """
    rows = [state.rows[0][0] for state in states]
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
    found = []
    for state, row, stream, token_id, (_, logprob, sampled) in zip(
        states, rows, streams, drawn.token_ids.tolist(), table, strict=True
    ):
        after = replace(row, stream=stream.close())
        if append:
            longer = state.append([token_id]).rows[0][0]
            after = replace(
                longer,
                kinds=row.kinds + GENERATED,
                logprobs=(*row.logprobs, logprob),
                sampling_logprobs=(*row.sampling_logprobs, sampled),
                stream=after.stream,
                finish_reason="",
                value=None,
                mirostat_start=row.next_mirostat_start if drawing.has_mirostat else None,
            )
        found.append((token_id, replace(state, rows=((after,),))))
    return found


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
