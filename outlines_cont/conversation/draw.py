"""`drawn_states`: draws one token for each of several states of one row from its logits, or from given scores, under its mask, as one batch
with the random stream of each row, and appends it with its log-probabilities by the model and as drawn. Where one row cannot be drawn,
nothing is: `DeadEnd` (no allowed token has a probability) or `InvalidLogits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from outlines_cont.checks import check
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
from outlines_cont.state.tokens import check_length

_TAIL_TOKENS = 8
_SCORES = torch.float32, torch.float64


def drawn_states(
    states: Sequence[SequenceState],
    masks: Sequence[TokenSet],
    masker: Masker,
    sampler: Sampler | None,
    scores: torch.Tensor | None,
    *,
    append: bool,
) -> list[tuple[int, SequenceState]]:
    """Return for each of R states, one or more, whose logits are known, the token that is drawn under its mask, and the state after it.

    The state has advanced its random stream, and has the token with `append`.

    Args:
        states: of one row, all of one model.
        masks: the tokens that each may draw.
        masker: applies them.
        sampler: `greedy()` for None.
        scores: (R, V) to draw from instead of the logits.
        append: whether the tokens are appended.

    Raises:
        OptionError: the sampler draws several tokens, or is a search; `scores` have another shape or type than the logits.
        InvalidLogits, DeadEnd: nothing can be drawn for one of the rows.
        ContextLengthError: a row has no room for another token.
    """
    rows, model = [state.rows[0][0] for state in states], states[0].model
    logits = torch.stack([row.logits for row in rows if row.logits is not None])
    _check_scores(scores, logits)
    for row in rows if append else ():
        check_length(model, row.token_ids, "conversation")
    drawing = drawing_of(sampler if sampler is not None else greedy())
    norm = logits.logsumexp(dim=-1)
    masked = masker.masked(logits if scores is None else scores, masks)
    streams = [row.stream.open() for row in rows]
    uniforms = [stream.draw() for stream in streams] if drawing.needs_random else None
    drawn = draw_with(drawing, masked, uniforms, [drawing.counts_of(row) for row in rows])
    logprobs = logits.gather(-1, drawn.token_ids[:, None])[:, 0] - norm
    token_ids, table = drawn.token_ids.tolist(), torch.stack([norm, logprobs, drawn.logprobs.to(norm)]).T.tolist()
    for row, (total, _, sampled) in zip(rows, table, strict=True):
        _check_draw(model, row, total, sampled)
    model.count(Meter(sampled_tokens=len(rows)))
    found = []
    for state, row, stream, token_id, (_, *logprobs_of) in zip(states, rows, streams, token_ids, table, strict=True):
        token = _token(row, token_id, *logprobs_of, has_mirostat=drawing.has_mirostat) if append else {}
        after = replace(row, stream=stream.close(), **token)
        found.append((token_id, SequenceState(model, ((after,),), state.seed)))
    return found


def _token(
    row: StateRow, token_id: int, logprob: float, sampling_logprob: float, *, has_mirostat: bool
) -> dict[str, Any]:
    """Return what changes in a row when a drawn token is appended, with its log-probabilities by the model and as drawn."""
    return {
        "token_ids": (*row.token_ids, token_id),
        "kinds": row.kinds + GENERATED,
        "logprobs": (*row.logprobs, logprob),
        "sampling_logprobs": (*row.sampling_logprobs, sampling_logprob),
        "logits": None,
        "piece": None,
        "finish_reason": "",
        "value": None,
        "mirostat_start": row.next_mirostat_start if has_mirostat else None,
    }


def check_sampler(sampler: Sampler | None) -> None:
    """Raise `OptionError` if a sampler draws several tokens, or is a search."""
    is_sampler = hasattr(sampler, "sample")
    holds = sampler is None or (is_sampler and (sampler.num_samples or 1) == 1)
    advice = "For several samples write `conversation.fork(n)`." if is_sampler else ""
    check("sampler", sampler, holds, "a sampler that draws one token, such as `samplers.multinomial()`,", advice)


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


def _check_scores(scores: torch.Tensor | None, logits: torch.Tensor) -> None:
    is_tensor = isinstance(scores, torch.Tensor)
    if scores is None or (is_tensor and scores.shape == logits.shape and scores.dtype in _SCORES):
        return
    got = f"one of shape {tuple(scores.shape)} and {scores.dtype}" if is_tensor else type(scores).__name__
    raise OptionError(
        f"expected a tensor of float32 or float64 of shape {tuple(logits.shape)} as `scores`, a row for each conversation, got {got}.",
        "scores",
    )
