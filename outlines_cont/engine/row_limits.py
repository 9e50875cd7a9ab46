"""`RowLimits`: the limits of a row: minimal and maximal length, the context, and the tokens that end a text (those of the model, and stop
tokens). `with_ends` adds the stop tokens to masks that allow an end of the model, and removes all ends below the minimal length unless
nothing else is allowed. `room`: how many tokens may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import TokenSet


@dataclass(frozen=True, slots=True, eq=False)
class RowLimits:
    """The length limits and end tokens of one generated span (piece)."""

    eos: TokenSet  # the tokens that end the text: those of the model and the stop tokens
    not_eos: TokenSet  # the others, as wide as the masks
    model_eos: TokenSet  # the tokens with which the model ends a text
    stop_tokens: TokenSet  # those of the call
    context_length: int | None  # the most tokens of a row; None for any number
    min_length: int = 0  # below it no end is drawn, unless nothing else is allowed
    max_length: int | None = None  # the most tokens of the row; None for any number
    max_written: int | None = None  # the same without healed tokens, if the end of the prompt is healed

    @classmethod
    def of(cls, model: LanguageModel, stop_token_ids: Sequence[int]) -> Self:
        """Return the limits of rows of a model, without those of a call."""
        model_eos, stop_tokens = TokenSet.of(model.eos_token_ids), TokenSet.of(stop_token_ids)
        eos = model_eos | stop_tokens
        not_eos = TokenSet.of_bitmask((~eos).bitmask(model.vocab_size))
        return cls(eos, not_eos, model_eos, stop_tokens, model.context_length, max_length=model.context_length)

    def without_ends(self) -> Self:
        """Return the same where ends of text are tokens like all others."""
        return replace(self, eos=TokenSet.none, not_eos=TokenSet.all)

    def up_to(self, length: int | None) -> Self:
        """Return the same with a maximal length of `length` (None for any), or that of the context if smaller."""
        known = [limit for limit in (length, self.context_length) if limit is not None]
        return replace(self, max_length=min(known, default=None))

    def with_ends(self, mask: TokenSet, num_written: int) -> TokenSet:
        """Return a mask with the stop tokens where the model may end the text; without ends where `num_written` is below the minimum."""
        if self.stop_tokens and mask & self.model_eos:
            mask = mask | self.stop_tokens
        if num_written < self.min_length:
            mask = mask & ~self.eos or mask
        return mask

    def context_room(self, length: int) -> int | None:
        """Return how many tokens the context has room for after `length`; None for any number."""
        return None if self.context_length is None else max(self.context_length - length, 0)

    def room(self, length: int, num_healed: int) -> int | None:
        """Return how many tokens may follow `length`, of which `num_healed` are or will be healed; None for any number."""
        room = None if self.max_length is None else max(self.max_length - length, 0)
        if self.max_written is None:
            return room
        written = max(self.max_written + num_healed - length, 0)
        return written if room is None else min(written, room)
