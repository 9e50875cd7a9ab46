"""`DrawPlace`: where a token of a row is drawn, and `Draw`: what was drawn there.

A place is the end of a row, or one ahead of it, behind tokens that are only guessed. Behind one forward all draws are made at once that
come if the guess is right: to draw eight tokens takes little longer than one, and on a GPU it saves seven waits. A draw that was made
ahead is taken where the row has come to that place and asks for the same, so it is the one that would have been made there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.policies.branch import TokenSet

_MOST_TOKENS = 16_384
"""Up to so large a vocabulary a draw on a CPU takes little but the calls; beyond it, those that are never taken cost more."""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A sampled token, with its log-probability by the model and as it was sampled, and the most probable tokens if asked for.

    Attributes:
        token_id: the token.
        logprob: its log-probability by the model.
        sampling_logprob: its log-probability as it was drawn; not finite where none can be drawn.
        norm: the logarithm of the sum of the exponentials of the logits; not finite where these are invalid.
        top: the most probable tokens with their log-probabilities, as many as the row wants.
    """

    token_id: int
    logprob: float
    sampling_logprob: float
    norm: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DrawPlace:
    """Where a token is drawn.

    Attributes:
        length: how many tokens stand before it.
        logits: (V,), before masks.
        mask: the tokens that may be drawn.
        drawing: how a token is drawn.
        uniform: the random number that it is drawn with; None where it takes none.
    """

    length: int
    logits: torch.Tensor
    mask: TokenSet
    drawing: Drawing
    uniform: float | None

    def asks_like(self, other: DrawPlace) -> bool:
        """Return whether a draw at one of both is a draw at the other: all that decides it is the same, the random number too."""
        is_same = self.logits is other.logits and self.drawing is other.drawing and self.uniform == other.uniform
        return is_same and self.mask == other.mask


def foresees(logits: torch.Tensor) -> bool:
    """Return whether to draw ahead pays for logits of (R, V)."""
    return logits.device.type != "cpu" or logits.shape[-1] <= _MOST_TOKENS
