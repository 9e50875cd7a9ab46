"""`drawn`: draws one token after each of several contents from their logits, or from given scores, under their constraints and a mask, as
one batch with the random stream of each, and appends it with its log-probabilities by the model and as drawn. Where one cannot be
drawn, none is: `DeadEnd` (no allowed token has a probability), `InvalidLogits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from outlines_cont.checks import check
from outlines_cont.conversation.content import Content
from outlines_cont.engine.drawing.draw_plan import draw_with, drawing_of
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.row import invalid_logits
from outlines_cont.errors import DeadEnd, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet, check_mask
from outlines_cont.samplers import greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import GENERATED, StateRow
from outlines_cont.state.tokens import check_length

_TAIL_TOKENS = 8


def drawn(
    contents: Sequence[Content],
    sampler: Sampler,
    mask: TokenSet,
    scores: torch.Tensor | None,
    masker: Masker,
    *,
    append: bool,
) -> list[tuple[int, Content]]:
    """Return the token that is drawn for each of R contents, one or more, and the content after it.

    The content has advanced its random stream, and has the token with `append`.

    Args:
        contents: of one model, with known logits; they are not changed.
        sampler: draws one token.
        mask: the tokens that may be drawn; the constraint of each content applies, too.
        scores: (R, V) to draw from instead of the logits.
        masker: applies the masks.
        append: whether the tokens are appended.

    Raises:
        OptionError: `scores` have another shape or type than the logits.
        ConstraintRequired: the constraint of a content is not known.
        InvalidLogits, DeadEnd: nothing can be drawn for one of the contents.
        ContextLengthError: one has no room for another token.
    """
    model, rows = contents[0].state.model, [content.row for content in contents]
    logits = torch.stack([row.logits for row in rows if row.logits is not None])
    _check_scores(scores, logits)
    for row in rows if append else ():
        check_length(model, row.token_ids, "conversation")
    masks = [content.constraint.mask & mask for content in contents]
    drawing = drawing_of(sampler)
    streams = [row.stream.open() for row in rows]
    uniforms = [stream.draw() for stream in streams] if drawing.needs_random else None
    masked = masker.masked(logits if scores is None else scores, masks)
    draws = draw_with(drawing, masked, uniforms, [drawing.counts_of(row) for row in rows])
    norm = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, draws.token_ids[:, None])[:, 0] - norm
    table = torch.stack([norm, logprobs, draws.logprobs.to(norm)]).T.tolist()
    for row, (total, _, sampling_logprob) in zip(rows, table, strict=True):
        _check_draw(model, row, total, sampling_logprob)
    model.count(Meter(sampled_tokens=len(rows)))
    found = []
    for content, row, stream, token_id, (_, logprob, sampling_logprob) in zip(
        contents, rows, streams, draws.token_ids.tolist(), table, strict=True
    ):
        after = replace(row, stream=stream.close())
        if append:
            after = replace(
                after.append([token_id], reset=False),
                kinds=row.kinds + GENERATED,
                logprobs=(*row.logprobs, logprob),
                sampling_logprobs=(*row.sampling_logprobs, sampling_logprob),
                finish_reason="",
                value=None,
                surprise_start=row.next_surprise_start if drawing.follows_surprise else None,
            )
        found.append((token_id, content.longer(after)))
    return found


def checked_sampler(sampler: Sampler | None) -> Sampler:
    """Return a sampler, `greedy()` for None; `OptionError` if it draws several tokens, or is a search."""
    is_sampler = hasattr(sampler, "sample")
    holds = sampler is None or (is_sampler and (sampler.num_samples or 1) == 1)
    advice = "For several samples write `conversation.fork(n)`." if is_sampler else ""
    check("sampler", sampler, holds, "a sampler that draws one token, such as `samplers.multinomial()`,", advice)
    return greedy() if sampler is None else sampler


def checked_mask(mask: TokenSet | None, vocab_size: int) -> TokenSet:
    """Return a mask, that of all tokens for None; `OptionError` if it is not one of the vocabulary."""
    try:
        check_mask(TokenSet.all if mask is None else mask, vocab_size, "mask")
    except (TypeError, ValueError) as error:
        raise OptionError(f"{error} None is for all tokens.", "mask") from error
    return TokenSet.all if mask is None else mask


def _check_draw(model: LanguageModel, row: StateRow, total: float, sampling_logprob: float) -> None:
    if math.isfinite(total) and math.isfinite(sampling_logprob):
        return
    after = f"{len(row.token_ids)} tokens (...{model.tokenizer.decode(row.token_ids[-_TAIL_TOKENS:])!r})"
    if not math.isfinite(total):
        raise invalid_logits(after)
    raise DeadEnd(
        f"no token that may be drawn has a probability after {after}. Loosen the mask or the constraint; a constraint that "
        "is fulfilled needs a model with an end-of-sequence token, or `constrain(None)`."
    )


def _check_scores(scores: torch.Tensor | None, logits: torch.Tensor) -> None:
    is_tensor = isinstance(scores, torch.Tensor)
    if scores is None or (
        is_tensor and scores.shape == logits.shape and scores.dtype in (torch.float32, torch.float64)
    ):
        return
    got = f"one of shape {tuple(scores.shape)} and {scores.dtype}" if is_tensor else type(scores).__name__
    raise OptionError(
        f"expected a tensor of float32 or float64 of shape {tuple(logits.shape)} as `scores`, a row for each conversation, got {got}.",
        "scores",
    )
