"""`Guidance`: classifier-free guidance (Sanchez et al. 2023, arXiv:2306.17806): the negative prompt, which replaces the prompt in a second
sequence, and the scale. `guided_logits`: the formula, `scale * log_softmax(p) + (1 - scale) * log_softmax(n)`, of the logits `p` after the
row and `n` after the negative prompt and the generated tokens; where `n` alone is minus infinity, the log-probability of `p`.

`NegativeSequence`: the second sequence of classifier-free guidance: the negative prompt of a row, then the tokens of its generated span,
which it reads from the row. It is fed in the same forwards, with a KV cache and logits of its own. `guided`: the logits of a batch, changed
for the rows that have one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol
from weakref import proxy

import torch

from outlines_cont.checks import is_number
from outlines_cont.engine.drafting.expected import NOTHING_EXPECTED, Expected
from outlines_cont.engine.fed_tokens import FedSequence, FedTokens
from outlines_cont.errors import OptionError
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import StateRow
from outlines_cont.state.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Guidance:
    """The negative prompt and scale of classifier-free guidance. Token ids are stored as a tuple.

    Attributes:
        negative_prompt: a text or `Tokens`, encoded as a prompt is, or token ids, at least one. The empty text is the token that the
            tokenizer puts at the beginning of every text; an error if it puts none.
        scale: 1 is the model's own distribution; 0 is that after the negative prompt; more than 1 moves away from the latter.

    Raises:
        OptionError: the negative prompt is neither a text nor token ids, or the scale is not a finite number.
    """

    negative_prompt: str | Tokens | Sequence[int]
    scale: float

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if not isinstance(self.negative_prompt, str | Tokens):
            object.__setattr__(self, "negative_prompt", _checked_ids(self.negative_prompt))

    @property
    def is_neutral(self) -> bool:
        """Whether the distribution is the model's own, so that the negative prompt is not fed."""
        return self.scale == 1


def guided_logits(positive: torch.Tensor, negative: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """Return (..., V) logits of the guided distribution, not normalised.

    Args:
        positive: (..., V) logits after the text.
        negative: the same after the negative prompt and the generated tokens.
        scale: one for all, or (..., 1).

    Returns:
        Minus infinity where `positive` has it. Where only `negative` has it, the log-probability of `positive`. NaN throughout a
        row for which one of the two is not a distribution.
    """
    norm = negative.logsumexp(-1, keepdim=True)
    positive, negative = positive.log_softmax(-1), negative - norm
    guided = negative + scale * (positive - negative)
    guided = torch.where(negative.isneginf(), positive, guided).masked_fill_(positive.isneginf(), -torch.inf)
    return guided.masked_fill_(~norm.isfinite(), torch.nan)


def check_scale(scale: object) -> None:
    """Raise `OptionError` unless `scale` is a finite number."""
    if not is_number(scale) or not abs(scale) < math.inf:
        raise OptionError(f"expected a finite number as `scale`, got {scale!r}", "scale")


def _checked_ids(prompt: object) -> tuple[int, ...]:
    try:
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
            raise TypeError
        token_ids = tuple(index(item) for item in prompt)
    except TypeError:
        raise OptionError(
            f"expected a text or token ids as `negative_prompt`, got {type(prompt).__name__}", "negative_prompt"
        ) from None
    if not token_ids:
        raise OptionError(
            "expected at least one token id as `negative_prompt`, got none. For the token at the beginning of every text pass ''.",
            "negative_prompt",
        )
    return token_ids


class GuidedSequence(Protocol):
    """What a negative sequence reads of its row; see `Row`."""

    counts: Meter

    @property
    def piece_start(self) -> int:
        """Index of the first token of the piece."""

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included."""

    @property
    def feeds_all(self) -> bool:
        """Whether all pending tokens are to be fed."""


class NegativeSequence(FedSequence):
    """The negative prompt of a row, and behind it the row's generated tokens, which it reads from the row."""

    def __init__(self, source: StateRow, row: GuidedSequence, num_places: int, scale: float) -> None:
        """Begin with the negative prompt, `source`; logits are kept for rewinds of `num_places` tokens."""
        super().__init__(source, FedTokens(source.cached, source.logits, row.counts))
        self.scale = scale
        self.feed.kept.num_places = num_places
        self._row: GuidedSequence = proxy(row)  # weak, as the row refers to this
        self._offset = len(source.token_ids) - row.piece_start

    def fork(self, row: GuidedSequence) -> NegativeSequence:
        """Return the same for a fork of the row."""
        fork = NegativeSequence(self.source, row, 0, self.scale)
        fork.feed = self.feed.fork()
        return fork

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self._row.token_ids) + self._offset

    @property
    def is_ready(self) -> bool:
        """Whether the logits at the end are known."""
        return self.feed.is_ready(self.length)

    # -- as a sequence of a batch, see `Row` ---------------------------------------------------------------------------

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed before the row can draw one, expected ones included."""
        return self.feed.num_pending(self.length) if self._row.feeds_all else 0

    @property
    def source_cached(self) -> int:
        """How many tokens are in the KV cache that it began with."""
        return len(self.base_kv) if self.base_kv is not None else 0

    def chunk(self) -> list[int]:
        """Return the pending ids, then the expected ones."""
        if not self.num_pending:
            return []
        written = self._row.token_ids[max(self.cached - self._offset, self._row.piece_start) :]
        return [*self.source.token_ids[self.cached :], *written, *self.feed.expected.token_ids]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are needed, ascending."""
        last = self.length - 1 - self.cached
        first = max(len(self.source.token_ids) - 1 - self.cached, last - self.feed.kept.num_places, 0)
        return list(range(first, min(self.num_pending, chunk_size)))

    # -- changes of the row --------------------------------------------------------------------------------------------

    def expect(self, token_ids: Sequence[int]) -> None:
        """Feed draft tokens after the pending tokens."""
        self.feed.expected = Expected(tuple(token_ids))

    def append(self, token_id: int) -> None:
        """Note that the row was appended to."""
        if self.feed.expected.token_ids:
            self.feed.append(token_id)

    def rewind(self) -> None:
        """Note that the row was rewound."""
        self.feed.rewind(self.length)
        self.feed.logits = None  # `need_logits` looks them up

    def restore(self) -> None:
        """Drop what was fed after the source; see `Checkpoint`."""
        self.feed.kept, self.feed.expected = self.feed.kept.emptied(), NOTHING_EXPECTED
        self.lose(self.source_cached)
        self.feed.logits, self.feed.is_partial = self.source.logits, False

    def need_logits(self, mask: TokenSet) -> None:
        """Ensure that tokens are pending, or the logits at the end are known for a mask."""
        self.feed.need_logits(self.length, mask)

    def logits_before(self, index: int) -> torch.Tensor | None:
        """Return (V,) logits before the token at `index` of the row; None if they are not kept."""
        return self.feed.kept.whole(index + self._offset)


def guided(negatives: Sequence[NegativeSequence | None], logits: torch.Tensor) -> torch.Tensor:
    """Return (R, V) logits of the model, guided for rows that have a negative sequence.

    Cost: some passes over the logits of guided rows.
    """
    found = [(i, negative) for i, negative in enumerate(negatives) if negative is not None]
    if not found:
        return logits
    at = [i for i, _ in found]
    theirs = torch.stack([negative.logits for _, negative in found if negative.logits is not None])
    scales = torch.tensor([[negative.scale] for _, negative in found], dtype=logits.dtype, device=logits.device)
    drawn_from = logits.clone()
    drawn_from[at] = guided_logits(logits[at], theirs, scales)
    return drawn_from
