"""`Speculation`: speculative decoding in the engine: before a forward it lets drafters propose the next tokens of rows, which the forward
feeds as well, and it measures the costs that determine the lengths of drafts. `TokenDraws` then draws each token as always, from the logits
of the model under the mask, with the random number of the row (not by the rejection step of the literature); draft tokens are accepted up
to the first that is not the drawn one. So drafts do not change the output, up to the rounding of wider forwards.

If a drafter raises, its rows go on without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from outlines_cont.engine.drafting.draft_length import DraftLengths, StepCosts
from outlines_cont.engine.drafting.lookahead import Lookahead
from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest
from outlines_cont.engine.row import Row


class Speculation:
    """Calls the drafters of the rows of an engine, and measures the costs by `clock`, in seconds."""

    def __init__(self, device_type: str, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.length = DraftLengths(device_type)
        self._drafters: list[Drafter] = []
        self._since = 0.0

    def draft(self, rows: Sequence[Row]) -> None:
        """Draft tokens behind the pending tokens of the rows of one forward, which begins when this returns."""
        ready = [(row, row.piece.draft) for row in rows if row.piece.draft is not None and row.can_draft]
        if ready:
            num_pending = max(1, *(row.num_pending for row in rows))
            num_rows = len(rows) + sum(row.piece.negative is not None for row in rows)
            costs = StepCosts(self.length, num_rows, num_pending)
            requests = [DraftRequest(row, draft, costs) for row, draft in ready]
            for drafter in dict.fromkeys(draft.drafter for _, draft in ready):
                self._draft(drafter, [request for request in requests if request.draft.drafter is drafter])
            for (row, _), request in zip(ready, requests, strict=True):
                if request.found is not None and request.found.token_ids:
                    _begin(row, request.found)
        self._since = self.clock()

    def _draft(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> None:
        if drafter not in self._drafters:
            self._drafters.append(drafter)
        for request in requests:
            request.draft.all_rates = self.length.rates(drafter)
        started = self.clock()
        try:
            drafter.draft(requests)
        except Exception as error:
            drafter.keep(())
            for request in requests:
                request.draft.fail(error)
        drafted = [(request, request.found.num_drafted) for request in requests if request.found is not None]
        drafted = [(request, count) for request, count in drafted if count]
        # The time that a drafter takes to read a prompt first is no measure of the next draft.
        is_usual = {request.draft.is_continued(len(request.row.token_ids)) for request, _ in drafted} == {True}
        if is_usual:
            longest = max(count for _, count in drafted)
            self.length.note_drafting(drafter, (self.clock() - started) / longest)

    def note_forward(self, num_tokens: int) -> None:
        """Record the time of a forward of `num_tokens` tokens, padding included, and of the draw after it."""
        self.length.forwards.note(num_tokens, self._lap())

    def note_draw(self) -> None:
        """Record the time of a draw without a forward."""
        self.length.draws.note(self._lap())

    def _lap(self) -> float:
        before, self._since = self._since, self.clock()
        return self._since - before

    def keep(self, rows: Iterable[Row]) -> None:
        """Release what drafters hold for rows that no longer run."""
        if not self._drafters:
            return
        drafts = [row.piece.draft for row in rows if row.piece.draft is not None]
        for drafter in self._drafters:
            drafter.keep([draft.memory for draft in drafts if draft.drafter is drafter])
        running = {draft.drafter for draft in drafts}
        self._drafters = [drafter for drafter in self._drafters if drafter in running]


def _begin(row: Row, found: Lookahead) -> None:
    """Feed a draft behind the pending tokens of a row, and of its negative prompt."""
    assert row.piece.draft is not None
    row.feed.expected = row.piece.draft.begin(found)
    row.count_draft("proposed_tokens", found.num_drawn)
    found.lend_states(row.piece.policies.states)
    if row.piece.negative is not None:
        row.piece.negative.expect(found.token_ids)
