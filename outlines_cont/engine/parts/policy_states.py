"""`PolicyStates`: the policies of one row with their states (one `Track` each), and backtracking: the tokens excluded at each position,
retry limits, and the rewind to an earlier drawn token if a position has no token left. Rewinds that exclude nothing and make no progress
are an error after 10,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from outlines_cont.errors import DeadEnd, UnsupportedBranch
from outlines_cont.immutable import shallow_copy
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.compose import Track, compose, row_ahead
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.state.exclusions import NO_EXCLUSIONS, Exclusion, Exclusions

# The most rewinds that exclude nothing, while the row does not become longer than it ever was.
_MAX_REWINDS = 10_000


class RewindableRow(RowView, Protocol):
    """A row that its policies may rewind; see `Row`."""

    @property
    def excerpt(self) -> str:
        """The end of the row, for errors."""

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens."""


class PolicyStates:
    """The policies of one row, their states, and what they have excluded.

    Attributes:
        tracks: the policies, each with its state after every token of the piece.
        decider: the one whose branch was taken last.
        exclusions: the tokens that may not be drawn again, by position.
    """

    def __init__(self, retries: int = 0, exclusions: Exclusions = NO_EXCLUSIONS) -> None:
        """Begin without policies; earlier runs of the piece had `retries` rewinds, and excluded `exclusions`."""
        self.tracks: list[Track] = []
        self.decider: Track | None = None
        self.exclusions = exclusions
        self._retries = retries
        self._num_rewinds, self._longest = 0, 0  # since the row was longer than ever before, and that length

    def start(self, policies: Sequence[Policy[Any]], row: RowView) -> None:
        """Set the policies of a row, and advance their states over the tokens that its piece has already."""
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

    def checkpoint(self) -> Callable[[], PolicyStates]:
        """Return a function that returns the policies as they are now, however often; lists of states may grow meanwhile."""
        now = shallow_copy(self)
        tracks = [(track, track.states, len(track.states), track.retries) for track in self.tracks]

        def restored() -> PolicyStates:
            policies = shallow_copy(now)
            policies.tracks = [track.at(states[:length], retries) for track, states, length, retries in tracks]
            return policies

        return restored

    @property
    def retries(self) -> int:
        """How often the piece was rewound because a policy refused its tokens."""
        return self._retries + sum(track.retries for track in self.tracks)

    @property
    def held_bytes(self) -> int:
        """How many trailing bytes of the piece may yet be rewound."""
        return max((track.policy.held_bytes(track.states[-1]) for track in self.tracks), default=0)

    def wishes(self, row: RowView) -> list[str]:
        """Return the text that each policy requires next, for errors; none for policies without a requirement."""
        return [wish for track in self.tracks if (wish := track.policy.wish(track.states[-1], row))]

    def has_hint(self, row: RowView) -> bool:
        """Return whether a policy hints at the next token."""
        return any(track.policy.hint(track.states[-1], row) is not None for track in self.tracks)

    # -- branches ------------------------------------------------------------------------------------------------------

    def branches(self, row: RowView) -> list[Branch]:
        """Return the branches to take: several to fork, none if a policy, the `decider`, stops the row."""
        branches, self.decider = compose(self.tracks, row)
        return branches

    def at_end(self, row: RewindableRow) -> Branch | None:
        """Return the branch of a policy that rewinds because the text must not end here; None if it may end."""
        for track in self.tracks:
            branch = track.policy.at_end(track.states[-1], row)
            if branch is not None:
                if not branch.is_rewind:
                    raise UnsupportedBranch(
                        f"expected None or a branch that rewinds from `at_end` at {row.excerpt}, got {branch!r} of {track.policy!r}. "
                        "Let it backtrack, or exclude tokens."
                    )
                self.decider = track
                return branch
        return None

    def append(self, token_id: int) -> None:
        """Advance every policy by a token."""
        for track in self.tracks:
            track.append(token_id)

    def rewind(self, count: int, row: RowView) -> None:
        """Drop the states of the last `count` tokens; `row` is the row as it was before."""
        for track in self.tracks:
            track.rewind(count, row if track is self.decider else None)
        self.exclusions = self.exclusions.until(len(row.token_ids) - count + 1)

    # -- backtracking --------------------------------------------------------------------------------------------------

    def backtrack(self, branch: Branch, row: RewindableRow, vocab_size: int) -> bool:
        """Rewind the row and exclude tokens as a branch says; return False if the rest of the branch is not to be executed.

        That is where the decider has no retries left, and gives up or raises, or where its position has none left.
        """
        if branch.is_retry and self.decider is not None:
            if self.decider.is_spent:
                self._give_up(self.decider, row, f"its {self.decider.retries} retries are spent")
                return False
            self.decider.retries += 1
        if branch.is_rewind and self.tracks:
            self._check_progress(branch, row)
        if branch.backtrack:
            row.rewind(branch.backtrack)
        return not branch.is_retry or self._exclude(branch, row, vocab_size)

    def _check_progress(self, branch: Branch, row: RewindableRow) -> None:
        """Raise if policies rewind forever. One that excludes tokens always ends."""
        length = len(row.token_ids)
        if length > self._longest:
            self._num_rewinds, self._longest = 0, length
        if not branch.exclude and not branch.avoid:
            self._num_rewinds += 1
        decider = self.decider.policy if self.decider is not None else None
        has_budget = branch.is_retry and decider is not None and decider.max_retries is not None
        if self._num_rewinds > _MAX_REWINDS and not has_budget:
            raise UnsupportedBranch(
                f"expected policies that come to an end, but they have rewound the row {_MAX_REWINDS:,} times, and the text "
                f"was never longer than {self._longest:,} tokens, now at {row.excerpt}; {decider!r} has decided last. Let it exclude "
                "the tokens that it refuses (`Branch.exclude`), or limit its retries (`max_retries`)."
            )

    def _exclude(self, branch: Branch, row: RewindableRow, vocab_size: int) -> bool:
        """Exclude the tokens that a branch refuses at the end of the row; return False if the row was rewound further instead."""
        excluded, avoided = (_ids(tokens, vocab_size) for tokens in (branch.exclude, branch.avoid))
        policy = next((i for i, track in enumerate(self.tracks) if track is self.decider), 0)
        self.exclusions = self.exclusions.adding(len(row.token_ids), excluded, avoided, policy)
        most = self.tracks[policy].policy.max_retries_per_place if self.tracks else None
        if most is not None and self.exclusions.entries[-1].retries > most:
            self.retry_earlier(row, f"{most} retries are spent at one position")
            return False
        return True

    def left(self, mask: TokenSet, index: int) -> TokenSet:
        """Return the tokens of a mask that are not excluded as token `index`; the mask itself if none are."""
        exclusion = self.exclusions.at(index)
        if exclusion is None:
            return mask
        allowed = mask & ~TokenSet.of(exclusion.excluded)
        return (allowed & ~TokenSet.of(exclusion.avoided)) or allowed

    def retry_earlier(self, row: RewindableRow, reason: str) -> None:
        """Rewind to the last drawn token before the last exclusion, and exclude it; further if that position has no retries left.

        If there is no such token, the policy that has refused gives up, or raises.
        """
        exclusion: Exclusion = self.exclusions.entries[-1]
        if not self.tracks:
            raise DeadEnd(f"no token is allowed after {row.excerpt}: all of them were excluded. Exclude fewer.")
        track = self.tracks[exclusion.policy % len(self.tracks)]  # a piece may be resumed with fewer policies
        most = track.policy.max_retries_per_place
        while True:
            earlier = (i for i in range(exclusion.index - 1, row.first_open - 1, -1) if row.was_drawn(i))
            index = next(earlier, None)
            if index is None or track.is_spent:
                self._give_up(track, row, reason if index is None else f"its {track.retries} retries are spent")
                return
            token_id = row.token_ids[index]
            self.decider = None
            row.rewind(len(row.token_ids) - index)
            track.retries += 1
            self.exclusions = self.exclusions.adding(index, frozenset((token_id,)), frozenset(), exclusion.policy)
            exclusion = self.exclusions.entries[-1]
            if most is None or exclusion.retries <= most:
                return
            reason = f"{most} retries are spent at one position"

    def _give_up(self, track: Track, row: RewindableRow, reason: str) -> None:
        """Let a policy end the row with an error, or accept what it has refused."""
        track.give_up(row, reason)
        self.exclusions = self.exclusions.until(len(row.token_ids))


def _ids(tokens: TokenSet | None, vocab_size: int) -> frozenset[int]:
    if tokens is None:
        return frozenset()
    token_ids = tokens.few_ids(vocab_size, vocab_size)
    assert token_ids is not None  # a set has no more words than there are tokens
    return frozenset(token_ids.tolist())
