"""`Speculation`: speculative decoding in the engine: has drafters guess the next tokens of rows before a forward, which then verifies all
of them at once, and measures what this costs, for the choice of lengths. Output is the same, token for token, with and without drafts.

A guessed token is drawn like any other, from the logits of the model under the mask, with the random number of the row, instead of by the
rejection step of the literature. It is accepted if it is the one that was drawn; the first that differs replaces the guess, and what was
guessed behind it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from outlines_cont.engine.guessing.guess_length import GuessLength
from outlines_cont.engine.guessing.row_draft import Drafter, Wish
from outlines_cont.engine.row import Row


class Speculation:
    """Has drafters guess for the rows of an engine, and measures by `clock`, in seconds, what that costs."""

    def __init__(self, device_type: str, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.length = GuessLength(device_type)
        self._drafters: list[Drafter] = []
        self._since = 0.0

    def guess(self, rows: Sequence[Row]) -> None:
        """Have guessed what comes behind the pending tokens of the rows of one forward, which begins when this returns."""
        asked = [row for row in rows if row.can_guess]
        if asked:
            num_pending = max(1, *(row.num_pending for row in rows))
            num_rows = len(rows) + sum(row.shadow is not None for row in rows)
            prices = self.length.prices(num_rows, num_pending)
            wishes = [Wish(row, row.draft, prices) for row in asked if row.draft is not None]
            for drafter in {id(wish.draft.drafter): wish.draft.drafter for wish in wishes}.values():
                self._guess(drafter, [wish for wish in wishes if wish.draft.drafter is drafter])
            for row, wish in zip(asked, wishes, strict=True):
                if wish.made is not None and wish.made.token_ids:
                    row.feed_guess(wish.made)
        self._since = self.clock()

    def _guess(self, drafter: Drafter, wishes: Sequence[Wish]) -> None:
        if not any(drafter is other for other in self._drafters):
            self._drafters.append(drafter)
        for wish in wishes:
            wish.draft.join(self.length.shares(drafter))
        started = self.clock()
        try:
            drafter.guess(wishes)
        except Exception as error:
            drafter.keep(())
            for wish in wishes:
                wish.draft.fail(error)
        longest = max(wish.made.num_drafted if wish.made is not None else 0 for wish in wishes)
        # What a drafter has to read first, such as a prompt, says nothing of the next guess.
        made = [wish for wish in wishes if wish.made is not None and wish.made.num_drafted]
        is_usual = {wish.draft.goes_on(len(wish.row.token_ids)) for wish in made} == {True}
        if longest and is_usual:
            self.length.note_guess(drafter, (self.clock() - started) / longest)

    def note_forward(self, num_tokens: int) -> None:
        """Take note that the forward of so many tokens, padding included, and the draw after it are over."""
        self.length.forwards.note(num_tokens, self._lap())

    def note_draw(self) -> None:
        """Take note that a draw without a forward is over."""
        self.length.draws.note(self._lap())

    def _lap(self) -> float:
        before, self._since = self._since, self.clock()
        return self._since - before

    def keep(self, rows: Iterable[Row]) -> None:
        """Let go of what drafters hold for rows that do not run any longer. Without drafters the rows are not read."""
        if not self._drafters:
            return
        rows = [*rows]
        for drafter in self._drafters:
            drafter.keep([row.draft.memory for row in rows if row.draft is not None and row.draft.drafter is drafter])
        running = {id(row.draft.drafter) for row in rows if row.draft is not None}
        self._drafters = [drafter for drafter in self._drafters if id(drafter) in running]
