"""`RowDraft`: the speculative decoding of one row: its drafter and that drafter's memory of the row, acceptance rates, the last draft, and
draws that were made ahead for it. A drafter that fails is switched off for the row. `Drafter`: the base class of drafters, which serve many
rows; `DraftRequest`: the request for one row; `set_lengths`: how many tokens to draft for each.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from fsm.errors import stacklevel_of_user
from outlines_cont.engine.drafting.expected import Expected
from outlines_cont.engine.drafting.lengths import AcceptRate, DrafterRecord, Graded, longest_likely
from outlines_cont.engine.drafting.lookahead import HINT, DraftPosition, Lookahead
from outlines_cont.engine.drawing.drawing import Draw, Drawing, DrawInput
from outlines_cont.errors import DraftWarning
from outlines_cont.immutable import shallow_copy
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.random_stream import OpenStream
from outlines_cont.user_code import place_of

# The acceptance rate before anything is known.
_EXPECTED = 0.7
# Hints are taken if this share of them is accepted, and else every 16th time, to measure the rate again.
_WORTH, _EVERY = 0.3, 16


class DraftedRow(Protocol):
    """What a drafter may read of a row; implemented by `engine.row.Row`."""

    stream: OpenStream
    piece: Any

    @property
    def token_ids(self) -> list[int]:
        """All ids, prompt included. Not to be changed."""

    @property
    def num_pending(self) -> int:
        """How many of them are to be fed."""

    @property
    def has_hint(self) -> bool:
        """Whether a policy hints at the next token."""

    def lookahead(self, *, takes_hints: bool) -> Lookahead:
        """Return a draft that has only the hints of policies."""

    def counts_for(self, *, follows_surprise: bool) -> TokenCounts:
        """Return the token counts of the row."""


class Drafter(ABC):
    """Base of drafters, which draft tokens for any number of rows of one model."""

    has_warned = False  # whether a warning was issued that the drafter failed

    @abstractmethod
    def memory(self) -> Any:
        """Return the empty memory of a row, such as an index of its tokens.

        Its method `cut(length)`, called when only the first `length` tokens are unchanged, takes constant time; `fork()` returns the
        memory of a fork of the row.
        """

    @abstractmethod
    def draft(self, requests: Sequence[DraftRequest]) -> None:
        """Push draft tokens to the lookaheads of some rows: as many as each requests, or fewer."""

    def keep(self, memories: Sequence[Any]) -> None:
        """Release what belongs to rows with other memories than these: they have ended. Does nothing by default."""
        return


class RowDraft:
    """The speculative decoding of one row.

    Attributes:
        memory: the drafter's memory of the row.
        counts: how many tokens were drafted for the row, and how many of them accepted.
        is_off: whether the drafter has failed on the row, and is not called again.
        record: what was measured of the drafter over all rows.
        masks: the lazy masks behind draft tokens that will probably be needed.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.counts = Meter()
        self.is_off = False
        self.record = DrafterRecord()
        self._rates: dict[Hashable, AcceptRate] = {}
        self._num_hints = 0
        self.masks: list[TokenSet] = []
        self._positions: Sequence[DraftPosition] = ()
        self._draws: dict[int, tuple[DrawInput, Draw]] = {}  # made ahead, by the number of tokens before them
        self.forget()

    def share(self, kind: Hashable, expected: float) -> float:
        """Return the acceptance rate of a kind of draft tokens; `expected` before anything is known."""
        rate = self._rates.get(kind)
        if rate is None:
            known = self.record.rates.get(kind)
            rate = self._rates[kind] = AcceptRate(expected if known is None else known.share)
        return rate.share

    def note(self, kind: Hashable, is_accepted: bool) -> None:
        """Record whether a draft token was accepted."""
        for one in (kind, kind.kind) if isinstance(kind, Graded) else (kind,):
            share = self.share(one, _EXPECTED)
            for rates in (self._rates, self.record.rates):
                rates.setdefault(one, AcceptRate(share)).note(is_accepted)
        if kind is not HINT:
            self.record.note(is_accepted)

    def chance(self, kinds: Sequence[Hashable]) -> float:
        """Return the probability that draft tokens of these kinds are all accepted; None is a forced one, which always is."""
        return math.prod(self.share(kind, _EXPECTED) for kind in kinds if kind is not None)

    @property
    def takes_hints(self) -> bool:
        """Whether hints of policies are drafted now: if most of them are accepted, and else every 16th time."""
        self._num_hints += 1
        return self.share(HINT, _EXPECTED) > _WORTH or not self._num_hints % _EVERY

    def fail(self, error: Exception) -> None:
        """Draft no more for the row, which continues without; the first failure of a drafter issues a warning."""
        self.is_off = True
        if not self.drafter.has_warned:
            self.drafter.has_warned = True
            # If warnings are errors, it must not end the step, which serves other rows as well.
            with suppress(DraftWarning):
                warnings.warn(
                    f"the draft {self.drafter!r} has failed, so the text is written without a draft: {type(error).__name__}: {error}"
                    f"{place_of(error)}",
                    DraftWarning,
                    stacklevel=stacklevel_of_user(),
                )

    def fork(self) -> RowDraft:
        """Return the same for a fork of the row."""
        other = shallow_copy(self)
        other.memory, other.counts = self.memory.fork(), Meter()
        other._rates = {kind: copy(rate) for kind, rate in self._rates.items()}
        other._draws = {}
        return other

    # -- the last draft ------------------------------------------------------------------------------------------------

    def begin(self, found: Lookahead) -> Expected:
        """Register a draft, and return what is to be fed."""
        self.masks = found.lazy_masks(self.chance)
        self._positions = found.positions
        return Expected(tuple(found.token_ids), kinds=tuple(found.kinds))

    def make_masks(self) -> None:
        """Compute the lazy masks; on a CPU they were computed during the forward."""
        for mask in self.masks:
            with suppress(Exception):
                _ = mask.words

    def inputs(
        self, length: int, expected: Expected, drawing_of: Callable[[float | None], Drawing], stream: OpenStream
    ) -> list[DrawInput]:
        """Return the inputs of the draws that follow in a row of `length` tokens if the draft is accepted, up to the first unknown one."""
        found: list[DrawInput] = []
        for position in self._positions if expected.is_draft else ():
            logits = expected.logits.get(length + position.offset)
            drawing = drawing_of(position.temperature)
            if logits is None or not position.mask.is_made or drawing.kind != "standard" or drawing.needs_counts:
                break
            uniform = stream.peek(position.num_drawn) if drawing.needs_random else None
            found.append(DrawInput(length + position.offset, logits, position.mask, drawing, uniform))
        return found

    def keep_draw(self, given: DrawInput, draw: Draw) -> None:
        """Keep a draw that was made ahead."""
        self._draws[given.length] = given, draw

    def draw_ahead(self, given: DrawInput) -> Draw | None:
        """Return the draw that was made ahead at a position, if it had the same input."""
        found = self._draws.get(given.length)
        return None if found is None or not found[0].is_same_draw(given) else found[1]

    def forget_draws(self) -> None:
        """Drop the draws that were made ahead, as the row continues with another token."""
        if self._draws:
            self._draws = {}

    def cut(self, length: int) -> None:
        """Note that the row was rewound to its first `length` tokens."""
        self.forget_draws()
        self.memory.cut(length)

    def forget(self) -> None:
        """Drop the memory of the row, and its draft, which an interrupt may have left incomplete."""
        self.memory = self.drafter.memory()
        self.masks, self._positions, self._draws = [], (), {}


@dataclass(slots=True, eq=False)
class DraftRequest:
    """The request for a draft of one row, and that draft as it grows."""

    row: DraftedRow  # not to be changed
    draft: RowDraft  # that of the row
    least: float  # all tokens of the draft are to be accepted with at least this probability
    takes_hints: bool = False  # whether hints of policies are drafted
    found: Lookahead | None = None  # the draft, once it is begun
    length: int = 0  # how many tokens to draft; see `set_lengths`

    def __post_init__(self) -> None:
        self.takes_hints = self.draft.takes_hints
        if self.takes_hints and self.row.has_hint:
            self.found = self.row.lookahead(takes_hints=True)

    @property
    def lookahead(self) -> Lookahead:
        """The draft, to which tokens are pushed; begun at the first access."""
        if self.found is None:
            self.found = self.row.lookahead(takes_hints=self.takes_hints)
        return self.found

    @property
    def context(self) -> Sequence[int]:
        """All ids, those of the row and the draft tokens. Not to be changed."""
        return self.row.token_ids if self.found is None else self.found.context


def set_lengths(requests: Sequence[DraftRequest], shares: Sequence[float]) -> list[DraftRequest]:
    """Set how many tokens to draft for each row of a step with the same drafter, whose tokens are accepted at such rates; 0 for none.

    Return the requests for at least one token.
    """
    wanted = [(request, share) for request, share in zip(requests, shares, strict=True) if share > 0.0]
    for request, share in wanted:
        request.length = longest_likely(share, request.least)
    if wanted and not any(request.length for request, _ in wanted) and wanted[0][0].draft.record.is_tried():
        for request, _ in wanted:
            request.length, request.least = 1, 0.0
    return [request for request, _ in wanted if request.length]


def pays(requests: Sequence[DraftRequest], shares: Sequence[float]) -> bool:
    """Return whether one more draft token of some row is probable enough, at these acceptance rates."""
    return any(
        one.draft.chance(one.lookahead.kinds) * share >= one.least for one, share in zip(requests, shares, strict=True)
    )
