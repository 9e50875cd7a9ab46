"""`drawn_token`: draws one token from logits with the code of the engine: mask, penalties and logits warpers, then sampling with one
uniform random number, which `uniform_of` draws from a seed, a torch generator or the operating system. Here errors are raised.
`TokenTally`: a cache of the token counts that penalties and warpers need.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch

from outlines_cont.engine.drawing.draw_plan import draw_with, drawing_of
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DeadEnd, InvalidLogits, OptionError
from outlines_cont.policies.branch import TokenSet, check_mask
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream, Rng, open_seeds
from outlines_cont.streams.stream_state import StreamState


def drawn_token(
    logits: Any,
    num_tokens: int,
    sampler: Sampler,
    mask: TokenSet | None,
    uniform: float | None,
    counts: TokenCounts | None,
) -> tuple[int, float]:
    """Return a token id, drawn from (V,) or (1, V) logits under a mask, and the log-probability with which it was drawn.

    V is `num_tokens` or more, as models may have more logits than their tokenizer has tokens. `uniform`, in [0, 1), and `counts` are for
    samplers that need them. Raises `TypeError` or `ValueError` for other logits or another mask, `InvalidLogits` for NaN, plus infinity, or
    minus infinity throughout, `DeadEnd` if no token of the mask has a probability, `SamplerError` for an invalid draw of a user's sampler.
    """
    row = _one_row(logits)
    if row.shape[-1] < num_tokens:
        raise ValueError(
            f"expected `logits` of all {num_tokens} tokens of the tokenizer, got {row.shape[-1]}. Give the tokenizer of the model that "
            "made the logits."
        )
    if mask is not None:
        check_mask(mask, row.shape[-1], "mask")
    if not math.isfinite(row.logsumexp(-1).item()):
        raise InvalidLogits(
            "expected finite logits, got NaN, plus infinity, or minus infinity for every token. "
            "The model that made them, or their float type, may be at fault."
        )
    masked = row if mask is None else Masker().masked(row, [mask])
    drawn = draw_with(
        drawing_of(sampler), masked, None if uniform is None else [uniform], None if counts is None else [counts]
    )
    logprob = float(drawn.logprobs[0])
    if not math.isfinite(logprob):
        raise DeadEnd(
            "every token of `mask` has probability zero in the logits, or the mask has none. Allow more tokens, or ask the "
            "constraint whether the text has ended."
        )
    return int(drawn.token_ids[0]), logprob


def uniform_of(rng: Rng, num_drawn: int) -> float:
    """Return a random number in [0, 1).

    Args:
        rng: A seed, for number `num_drawn` of its stream, which is that of the first row of a generator; a generator of
            random numbers, which advances; None for a number from the operating system. Anything else is an `OptionError`.
        num_drawn: How many numbers of the seed were drawn before.
    """
    if rng is None:
        return secrets.randbits(53) / 2**53
    if isinstance(rng, torch.Generator):
        return float(torch.rand((), generator=rng, dtype=torch.float64, device=rng.device))
    if isinstance(rng, Sequence):
        raise OptionError(f"expected an int or a generator as `rng`, got {type(rng).__name__}", "rng")
    (seed,) = open_seeds(rng, 1)
    return RandomStream(seed, drawn=num_drawn).open().peek()


def _one_row(logits: Any) -> torch.Tensor:
    """Return (1, V) logits of float32 or float64."""
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        kind = f"tensor of {logits.dtype}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise TypeError(f"expected a tensor of floats as `logits`, got {kind}. `torch.as_tensor(logits)` makes one.")
    shape = tuple(logits.shape)
    if len(shape) not in (1, 2) or shape[-1] == 0 or (len(shape) == 2 and shape[0] != 1):
        raise ValueError(
            f"expected `logits` of one row, (V,) or (1, V), got the shape {shape}. The last row of a batch is `logits[-1]`; "
            "push every row into a stream of its own."
        )
    row = logits.detach().reshape(1, -1)
    return row if row.dtype in (torch.float32, torch.float64) else row.float()


class TokenTally:
    """The token counts of the last state of a stream that was counted; the next state is usually one token later, which costs one update.

    Threads may share it: `take` gives the counts to one of them, and others count from the beginning.
    """

    __slots__ = ("_last", "_prompt")

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self._prompt = prompt
        self._last: list[tuple[StreamState, TokenCounts]] = []

    def take(self, state: StreamState) -> TokenCounts:
        """Return the counts of the prompt and of all tokens up to `state`; the caller puts them back with `give`.

        Cost: the tokens since the state that was counted last; all tokens if that is not an earlier state of this stream.
        """
        try:
            last, counts = self._last.pop()
        except IndexError:
            return self._count(state)
        since = list(takewhile(lambda at: at is not last and at.num_tokens > last.num_tokens, state.back()))
        if (since[-1].before if since else state) is not last:
            return self._count(state)
        for at in reversed(since):
            assert at.token_id is not None
            counts.add(at.token_id, True, at.logprob)
        return counts

    def give(self, state: StreamState, counts: TokenCounts) -> None:
        """Cache the counts of `state`."""
        self._last[:] = [(state, counts)]

    def _count(self, state: StreamState) -> TokenCounts:
        pushed = [(at.token_id, at.logprob) for at in state.back() if at.token_id is not None][::-1]
        given = len(self._prompt)
        return TokenCounts(
            [*self._prompt, *(token_id for token_id, _ in pushed)],
            [False] * given + [True] * len(pushed),
            [None] * given + [logprob for _, logprob in pushed],
            surprise_start=0,
        )
