"""Tokens that are encoded anew in the middle of a row: what is counted of the others stays, wherever the weight begins."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import GENERATED, LogprobSum, StateRow
from outlines_cont.state.text import _replaced

SIZE = 8


@given(st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, 4))
def test_what_is_counted_behind_tokens_that_are_replaced_is_what_was(begin: int, one: int, other: int, num_new: int) -> None:
    first, last = min(one, other), max(one, other)
    logprobs = tuple(-float(2**index) for index in range(SIZE))  # every sum says which tokens it is of
    row = replace(
        StateRow.of_prompt(range(SIZE), RandomStream(1)),
        kinds=GENERATED * SIZE,
        logprobs=logprobs,
        sampling_logprobs=logprobs,
        counted=LogprobSum(((0, begin),)),
    )
    found = _replaced(row, first, last, range(50, 50 + num_new))
    assert found.token_ids == (*range(first), *range(50, 50 + num_new), *range(last, SIZE))
    counted = [index for index in range(begin, SIZE) if not first <= index < last]
    assert found.weight == sum(logprobs[index] for index in counted)
    assert len(found.kinds) == len(found.logprobs) == len(found.sampling_logprobs) == len(found.token_ids)
    assert found.kinds.count(GENERATED) == SIZE - (last - first)
