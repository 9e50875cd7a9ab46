"""A negative sequence beside a row, without a model: what it feeds, holds, follows and loses."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from outlines_cont.engine.guided.shadow import Shadow
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow


@dataclass(eq=False)
class Beside:
    """What a shadow asks of its row; three tokens, the last two of the piece."""

    token_ids: list[int] = field(default_factory=lambda: [9, 5, 6])
    piece_start: int = 1
    counts: Meter = field(default_factory=Meter)
    feeds_all: bool = True


def fed_to(shadow: Shadow) -> list[int]:
    """Feed all that is pending; the logits after token i of the sequence are i + 1."""
    chunk, start = shadow.chunk(), shadow.cached
    assert len(chunk) == shadow.num_pending
    shadow.fed(len(chunk), {at: torch.tensor([start + at + 1.0]) for at in shadow.wanted(len(chunk))})
    return chunk


def known(shadow: Shadow) -> float:
    assert shadow.is_ready
    assert shadow.logits is not None
    return float(shadow.logits)


def test_it_is_the_negative_prompt_and_the_tokens_of_the_piece() -> None:
    row = Beside()
    shadow = Shadow(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 2)
    assert (shadow.length, shadow.wanted(9)) == (5, [2, 3, 4])
    assert fed_to(shadow) == [1, 2, 3, 5, 6]
    assert (known(shadow), shadow.num_pending, row.counts.fed_tokens) == (5, 0, 5)
    row.token_ids.append(7)
    shadow.meet(7)
    assert not shadow.is_ready
    row.feeds_all = False
    assert (shadow.num_pending, shadow.chunk()) == (0, [])
    row.feeds_all = True
    assert fed_to(shadow) == [7]
    assert known(shadow) == 6


def test_what_is_expected_is_fed_behind_it_and_held_until_something_else_comes() -> None:
    row = Beside()
    shadow = Shadow(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 4)
    shadow.expect([7, 8, 4])
    assert fed_to(shadow) == [1, 2, 3, 5, 6, 7, 8, 4]
    assert (shadow.cached, shadow.held, known(shadow)) == (5, 8, 5)
    row.token_ids.append(7)
    shadow.meet(7)
    assert (shadow.cached, shadow.held, known(shadow)) == (6, 8, 6)
    fork_row = Beside([*row.token_ids])
    fork = shadow.fork(fork_row)
    row.token_ids.append(9)
    shadow.meet(9)
    assert (shadow.cached, shadow.held, shadow.chunk()) == (6, 6, [9])
    fork_row.token_ids.append(8)
    fork.meet(8)
    assert (fork.cached, fork.held, known(fork)) == (7, 8, 7)


def test_going_back_lets_go_of_what_was_expected_and_needs_no_forward_where_logits_are_kept() -> None:
    row = Beside()
    shadow = Shadow(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 4)
    shadow.expect([7, 8])
    fed_to(shadow)
    row.token_ids = [9, 5]
    shadow.rewind()
    assert (shadow.cached, shadow.held, shadow.num_pending, shadow.is_ready) == (4, 4, 0, False)
    shadow.need_logits(TokenSet.all)
    assert known(shadow) == 4
    assert float(shadow.logits_before(2) or 0) == 4
    assert shadow.logits_before(3) is None


def test_what_is_lost_is_fed_again() -> None:
    row = Beside()
    shadow = Shadow(StateRow.of_prompt([1, 2, 3], RandomStream(0)), row, 0)
    shadow.expect([7, 8])
    fed_to(shadow)
    shadow.lose(6)
    assert (shadow.cached, shadow.held, row.counts.recomputed_tokens) == (5, 5, 2)
    shadow.lose(2)
    assert fed_to(shadow) == [3, 5, 6, 7, 8]
    row.token_ids = [9, 5]
    shadow.rewind()
    shadow.need_logits(TokenSet.all)
    assert fed_to(shadow) == [5]
    assert known(shadow) == 4
    shadow.restore()
    assert (shadow.cached, shadow.held, shadow.is_ready) == (0, 0, False)
