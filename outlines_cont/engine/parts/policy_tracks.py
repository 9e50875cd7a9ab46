"""`PolicyTracks`: the policies of one row with their states (one `Track` each), and backtracking: the tokens excluded at each position,
retry limits, and the return to an earlier drawn token where a position has none left. Rewinds that exclude nothing and make no progress
are an error after 10,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.compose import Track, compose, row_ahead
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.shallow import shallow_copy
from outlines_cont.state.exclusions import NO_EXCLUSIONS, Exclusion, Exclusions

# How often policies may take back what a row has written, and exclude nothing, while it grows no longer than it ever was.
_MAX_TAKEN_BACK = 10_000


class RewindableRow(RowView, Protocol):
    """A row that its policies may rewind; see `Row`."""

    @property
    def place(self) -> str:
        """Where the row stands, for errors."""

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""


class PolicyTracks:
    """The policies of one row, their states, and what they have excluded.

    Attributes:
        tracks: each of them, with its state after every token of the piece.
        decider: the one that has decided last what the row does; None where none has.
        exclusions: what may not be drawn again, by its place.
    """

    def __init__(self, retries: int = 0, exclusions: Exclusions = NO_EXCLUSIONS) -> None:
        """Begin without policies; the piece went back `retries` times before this run, which has refused `exclusions`."""
        self.tracks: list[Track] = []
        self.decider: Track | None = None
        self.exclusions = exclusions
        self._retries = retries
        self._taken_back = (0, 0)  # how often since the row was longer than ever before, and how long it was

    def start(self, policies: Sequence[Policy[Any]], row: RowView) -> None:
        """Let policies steer a row. A piece that is resumed is walked again from its start, so that each has its whole history."""
        written = row.token_ids[row.piece_start :]
        begun = row_ahead([*row.token_ids[: row.piece_start]], row) if written else row
        self.tracks = [Track(policy, begun) for policy in policies]
        for token_id in written:
            self.append(token_id)

    def fork(self) -> Self:
        """Return the same for a fork of the row."""
        other = shallow_copy(self)
        other.tracks = [track.fork() for track in self.tracks]
        return other

    def checkpoint(self) -> Callable[[], PolicyTracks]:
        """Return what gives the policies as they are now, any number of times; lists of states may grow meanwhile."""
        now, tracks = (
            shallow_copy(self),
            [(track, track.states, len(track.states), track.retries) for track in self.tracks],
        )

        def restored() -> PolicyTracks:
            policies = shallow_copy(now)
            policies.tracks = [track.at(states[:length], retries) for track, states, length, retries in tracks]
            return policies

        return restored

    @property
    def retries(self) -> int:
        """How often the piece has gone back because a policy refused what it had written."""
        return self._retries + sum(track.retries for track in self.tracks)

    @property
    def held_bytes(self) -> int:
        """How many trailing bytes of the piece may yet be rewound."""
        return max((track.policy.held_bytes(track.states[-1]) for track in self.tracks), default=0)

    def wishes(self, row: RowView) -> list[str]:
        """Return what must follow, for errors, of each policy that requires something in particular."""
        return [wish for track in self.tracks if (wish := track.policy.wish(track.states[-1], row))]

    def has_hint(self, row: RowView) -> bool:
        """Return whether a policy hints at the token that comes next."""
        return any(track.policy.hint(track.states[-1], row) is not None for track in self.tracks)

    # -- what they want ------------------------------------------------------------------------------------------------

    def branches(self, row: RowView) -> list[Branch]:
        """Return the branches to take: several to fork, none where a policy, the `decider`, stops the row."""
        branches, self.decider = compose(self.tracks, row)
        return branches

    def at_end(self, row: RewindableRow) -> Branch | None:
        """Return the branch by which a policy goes back as the text must not end here; None where it may end."""
        for track in self.tracks:
            branch = track.policy.at_end(track.states[-1], row)
            if branch is not None:
                if not branch.is_rewind:
                    raise UnsupportedBranch(
                        f"expected None or a branch that goes back from `at_end` at {row.place}, got {branch!r} of {track.policy!r}. "
                        "Have it give tokens back, or exclude some."
                    )
                self.decider = track
                return branch
        return None

    def append(self, token_id: int) -> None:
        """Append the state after one more token to each track."""
        for track in self.tracks:
            track.append(token_id)

    def rewind(self, count: int, row: RowView) -> None:
        """Go back by `count` tokens; `row` is the row as it was before."""
        for track in self.tracks:
            track.rewind(count, row if track is self.decider else None)
        self.exclusions = self.exclusions.until(len(row.token_ids) - count + 1)

    def check_progress(self, branch: Branch, row: RewindableRow) -> None:
        """Raise where policies rewind for ever. One that excludes tokens ends by itself."""
        length = len(row.token_ids)
        count, longest = self._taken_back
        if length > longest:
            count, longest = 0, length
        if not branch.exclude and not branch.avoid:
            count += 1
        self._taken_back = count, longest
        decider = self.decider.policy if self.decider is not None else None
        has_budget = branch.is_retry and decider is not None and decider.max_retries is not None
        if count > _MAX_TAKEN_BACK and not has_budget:
            raise UnsupportedBranch(
                f"expected policies that come to an end, but they have given tokens back {_MAX_TAKEN_BACK:,} times, and the text "
                f"was never longer than {longest:,} tokens, now at {row.place}; {decider!r} has decided last. Have it exclude "
                "what it refuses (`Branch.exclude`), or say how often it may go back (`max_retries`)."
            )

    # -- what they refuse is drawn otherwise ---------------------------------------------------------------------------

    def begin_retry(self, row: RewindableRow) -> bool:
        """Count a retry of the decider; where it has none left, have it give up and return False."""
        if self.decider is None:
            return True
        if self.decider.is_spent:
            self._give_up(self.decider, row, f"its {self.decider.retries} retries are spent")
            return False
        self.decider.retries += 1
        return True

    def exclude(self, branch: Branch, row: RewindableRow, vocab_size: int) -> bool:
        """Remember what a branch refuses at the present end; return False where the row has gone back further instead."""
        excluded, avoided = (_ids(tokens, vocab_size) for tokens in (branch.exclude, branch.avoid))
        policy = next((i for i, track in enumerate(self.tracks) if track is self.decider), 0)
        self.exclusions = self.exclusions.adding(len(row.token_ids), excluded, avoided, policy)
        place = self.exclusions.places[-1]
        most = self.tracks[policy].policy.max_retries_per_place if self.tracks else None
        if most is not None and place.retries > most:
            self.leave_place(row, f"{most} retries are spent at one place")
            return False
        return True

    def left(self, mask: TokenSet, index: int) -> TokenSet:
        """Return what is left of a mask for token `index`; the mask itself where nothing is excluded there."""
        place = self.exclusions.at(index)
        if place is None:
            return mask
        allowed = mask & ~TokenSet.of(place.excluded)
        return (allowed & ~TokenSet.of(place.avoided)) or allowed

    def leave_place(self, row: RewindableRow, reason: str) -> None:
        """Go back from the last place of the exclusions to the last token before it that was drawn, and have that drawn otherwise;
        further where that place has no retries left either. Where there is none, the policy that refuses is asked.
        """
        place: Exclusion = self.exclusions.places[-1]
        if not self.tracks:
            raise DeadEnd(f"no token is allowed after {row.place}: all of them were excluded. Exclude fewer.")
        track = self.tracks[place.policy % len(self.tracks)]  # a piece may be resumed with fewer policies
        most = track.policy.max_retries_per_place
        while True:
            earlier = (i for i in range(place.index - 1, row.first_open - 1, -1) if row.was_drawn(i))
            index = next(earlier, None)
            if index is None or track.is_spent:
                self._give_up(track, row, reason if index is None else f"its {track.retries} retries are spent")
                return
            token_id = row.token_ids[index]
            self.decider = None
            row.rewind(len(row.token_ids) - index)
            track.retries += 1
            self.exclusions = self.exclusions.adding(index, frozenset((token_id,)), frozenset(), place.policy)
            place = self.exclusions.places[-1]
            if most is None or place.retries <= most:
                return
            reason = f"{most} retries are spent at one place"

    def _give_up(self, track: Track, row: RewindableRow, reason: str) -> None:
        """Have a policy end the row, or let pass what it has refused here."""
        track.give_up(row, reason)
        self.exclusions = self.exclusions.until(len(row.token_ids))


def _ids(tokens: TokenSet | None, vocab_size: int) -> frozenset[int]:
    if tokens is None:
        return frozenset()
    token_ids = tokens.few_ids(vocab_size, vocab_size)
    assert token_ids is not None  # no set lies in more words than there are tokens
    return frozenset(token_ids.tolist())
