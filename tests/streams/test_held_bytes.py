"""A policy of a user that takes back what a stream has shown: an error of its row, not a stream that differs from the text."""

from __future__ import annotations

import pytest

from outlines_cont import continuous, generate
from outlines_cont.errors import UnsupportedBranch
from outlines_cont.policies import Branch, Policy, RowView, TokenSet
from tests.fakes import random_model


class Second(Policy[int]):
    """Refuses the third token once, and holds back nothing, or all."""

    def __init__(self, held: int) -> None:
        self.held = held

    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        first = row.piece_start
        if state == 3 and not row.excluded(first):
            return [Branch(backtrack=3, exclude=TokenSet.of([row.token_ids[first]]))]
        return [Branch(sample_mask=TokenSet.all)]

    def held_bytes(self, state: int) -> int:
        return self.held


@pytest.mark.parametrize(("held", "retract"), [(0, False), (0, True), (1000, False)])
def test_a_stream_shows_what_the_call_returns_or_the_row_fails(held: int, retract: bool) -> None:
    write = continuous(generate.text(random_model()))
    whole = write("the ", max_tokens=6, policies=[Second(held)])
    assert whole.errors == [[None]]
    assert whole.tokens[..., -6:] != write("the ", max_tokens=6).tokens[..., -6:]
    with write.stream("the ", max_tokens=6, policies=[Second(held)], retract=retract) as stream:
        shown = ""
        for chunk in stream:
            shown = shown[: len(shown) - chunk.retract] + chunk.text
    if held or retract:
        assert stream.state == whole
        assert "the " + shown == str(whole)
    else:
        ((error,),) = stream.state.errors
        assert isinstance(error, UnsupportedBranch)
        assert "takes back 3 tokens" in str(error)
        assert "`held_bytes`" in str(error)
