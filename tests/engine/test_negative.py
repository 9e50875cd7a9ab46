"""A negative sequence beside a row, without a model: what it feeds, holds, follows and loses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from outlines_cont.engine.guidance import NegativeSequence
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow


@dataclass(eq=False)
class Beside:
    """What a negative asks of its row; three tokens, the last two of the piece."""

    token_ids: list[int] = field(default_factory=lambda: [9, 5, 6])
    piece_start: int = 1
    counts: Meter = field(default_factory=Meter)
    feeds_all: bool = True


def fed_to(negative: NegativeSequence) -> list[int]:
    """Feed all that is pending; the logits after token i of the sequence are i + 1."""
    chunk, start = negative.chunk(), negative.cached
    assert len(chunk) == negative.num_pending
    negative.fed(len(chunk), {at: torch.tensor([start + at + 1.0]) for at in negative.wanted(len(chunk))})
    return chunk


def known(negative: NegativeSequence) -> float:
    assert negative.is_ready
    assert negative.logits is not None
    return float(negative.logits)


def test_it_is_the_negative_prompt_and_the_tokens_of_the_piece() -> None:
    row = Beside()
    negative = NegativeSequence(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 2, 1.0)
    assert (negative.length, negative.wanted(9)) == (5, [2, 3, 4])
    assert fed_to(negative) == [1, 2, 3, 5, 6]
    assert (known(negative), negative.num_pending, row.counts.fed_tokens) == (5, 0, 5)
    row.token_ids.append(7)
    negative.append(7)
    assert not negative.is_ready
    row.feeds_all = False
    assert (negative.num_pending, negative.chunk()) == (0, [])
    row.feeds_all = True
    assert fed_to(negative) == [7]
    assert known(negative) == 6


def test_what_is_expected_is_fed_behind_it_and_held_until_something_else_comes() -> None:
    row = Beside()
    negative = NegativeSequence(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 4, 1.0)
    negative.expect([7, 8, 4])
    assert fed_to(negative) == [1, 2, 3, 5, 6, 7, 8, 4]
    assert (negative.cached, negative.feed.held, known(negative)) == (5, 8, 5)
    row.token_ids.append(7)
    negative.append(7)
    assert (negative.cached, negative.feed.held, known(negative)) == (6, 8, 6)
    fork_row = Beside([*row.token_ids])
    fork = negative.fork(fork_row)
    row.token_ids.append(9)
    negative.append(9)
    assert (negative.cached, negative.feed.held, negative.chunk()) == (6, 6, [9])
    fork_row.token_ids.append(8)
    fork.append(8)
    assert (fork.cached, fork.feed.held, known(fork)) == (7, 8, 7)


def test_going_back_lets_go_of_what_was_expected_and_needs_no_forward_where_logits_are_kept() -> None:
    row = Beside()
    negative = NegativeSequence(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 4, 1.0)
    negative.expect([7, 8])
    fed_to(negative)
    row.token_ids = [9, 5]
    negative.rewind()
    assert (negative.cached, negative.feed.held, negative.num_pending, negative.is_ready) == (4, 4, 0, False)
    negative.need_logits(TokenSet.all)
    assert known(negative) == 4
    assert float(negative.logits_before(2) or 0) == 4
    assert negative.logits_before(3) is None


def test_what_is_lost_is_fed_again() -> None:
    row = Beside()
    negative = NegativeSequence(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 0, 1.0)
    negative.expect([7, 8])
    fed_to(negative)
    negative.lose(6)
    assert (negative.cached, negative.feed.held, row.counts.recomputed_tokens) == (5, 5, 2)
    negative.lose(2)
    assert fed_to(negative) == [3, 5, 6, 7, 8]
    row.token_ids = [9, 5]
    negative.rewind()
    negative.need_logits(TokenSet.all)
    assert fed_to(negative) == [5]
    assert known(negative) == 4
    negative.restore()
    assert (negative.cached, negative.feed.held, negative.is_ready) == (0, 0, False)
