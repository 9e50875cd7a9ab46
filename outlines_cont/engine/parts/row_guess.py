"""`RowGuess`: what was guessed of the next tokens of a row, and the draws that were made ahead in case it is right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Self

from outlines_cont.engine.drawing.draw_place import Draw, DrawPlace
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.engine.guessing.expected import Expected
from outlines_cont.engine.guessing.lookahead import Asked, Lookahead
from outlines_cont.engine.guessing.row_draft import RowDraft
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.random_stream import OpenStream
from outlines_cont.shallow import shallow_copy


class RowGuess:
    """What is known of tokens that a row may write next.

    Attributes:
        draft: what guesses them; None where nothing does.
        masks: the lazy masks behind guessed tokens that are likely to be needed.
    """

    def __init__(self, counts: Meter) -> None:
        self.draft: RowDraft | None = None
        self.masks: list[TokenSet] = []
        self._counts = counts
        self._asked: tuple[Asked, ...] = ()  # what the policies want behind guessed tokens
        self._draws: dict[int, tuple[DrawPlace, Draw]] = {}  # draws made ahead, by the number of tokens before them

    def fork(self) -> Self:
        """Return the same for a fork of the row."""
        other = self.checkpoint()
        other.draft = None if self.draft is None else self.draft.fork()
        return other

    def checkpoint(self) -> Self:
        """Return a copy without draws, which are made again."""
        other = shallow_copy(self)
        other._draws = {}
        return other

    @property
    def is_on(self) -> bool:
        """Whether tokens are guessed at all."""
        return self.draft is not None and not self.draft.is_off

    def begin(self, found: Lookahead) -> Expected:
        """Take in a guess, and return what is to be fed."""
        if self.draft is not None:
            self.masks = found.lazy_masks(self.draft.chance)
        self._asked = tuple(found.asked)
        self.count("proposed_tokens", found.num_drawn)
        return Expected(tuple(found.token_ids), kinds=tuple(found.kinds))

    def count(self, name: str, number: int = 1) -> None:
        """Count what the draft has done, for the row and for the model."""
        for counts in (self._counts, *(() if self.draft is None else (self.draft.counts,))):
            setattr(counts, name, getattr(counts, name) + number)

    def make_masks(self) -> None:
        """Have the masks made: they are by now on a CPU; elsewhere the device computes meanwhile."""
        for mask in self.masks:
            with suppress(Exception):
                _ = mask.words

    def places(
        self, length: int, expected: Expected, drawing_of: Callable[[float | None], Drawing], stream: OpenStream
    ) -> list[DrawPlace]:
        """Return where tokens are drawn next if what was guessed comes true, as far as logits and masks are known.

        Args:
            length: the number of tokens of the row.
            expected: what was guessed, and fed.
            drawing_of: how a token is drawn at a temperature.
            stream: the random numbers of the row.
        """
        found: list[DrawPlace] = []
        for asked in self._asked if expected.is_guess else ():
            logits = expected.logits.get(length + asked.offset)
            drawing = drawing_of(asked.temperature)
            if logits is None or not asked.mask.is_made or drawing.kind != "standard" or drawing.needs_counts:
                break
            uniform = stream.ahead(asked.num_drawn) if drawing.needs_random else None
            found.append(DrawPlace(length + asked.offset, logits, asked.mask, drawing, uniform))
        return found

    def foresee(self, place: DrawPlace, draw: Draw) -> None:
        """Keep a draw that was made ahead."""
        self._draws[place.length] = place, draw

    def foreseen(self, length: int) -> tuple[DrawPlace, Draw] | None:
        """Return the draw that was made ahead behind so many tokens, and the place that it was made for."""
        return self._draws.get(length)

    def forget_draws(self) -> None:
        """Forget what was drawn ahead: another token has come."""
        if self._draws:
            self._draws = {}
