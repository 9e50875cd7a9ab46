"""How many tokens of every row go into a forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import continuous, generate
from outlines_cont.engine.drafting.costs import FREE_TOKENS, OTHER_FREE_TOKENS, chunk_width
from tests.fakes import random_model

pendings = st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any)


@given(pendings, st.integers(1, 400), st.sampled_from(["cpu", "cuda"]))
def test_no_width_feeds_more_for_its_cost(pending: list[int], max_tokens: int, device: str) -> None:
    width = chunk_width(pending, max_tokens, device)
    assert 1 <= width <= max(max_tokens // len(pending), 1)
    free = FREE_TOKENS.get(device, OTHER_FREE_TOKENS)

    def rate(width: int) -> float:
        return sum(min(count, width) for count in pending) / (free + width * len(pending))

    assert rate(width) >= max(rate(other) for other in range(1, max(max_tokens // len(pending), 1) + 1)) - 1e-12


def test_a_few_tokens_do_not_pad_many_rows() -> None:
    assert chunk_width([1] * 63 + [40], 4096, "cpu") == 1
    assert chunk_width([1] * 63 + [40], 4096, "cuda") == 1
    assert chunk_width([1] * 3 + [40], 4096, "cpu") == 40
    assert chunk_width([1] * 15 + [8], 4096, "cuda") == 8
    assert chunk_width([12] * 16, 4096, "cpu") == 12


def test_text_that_is_fed_in_parts_beside_other_rows_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama")
    pattern = "[a-c]the name of the rose is [x-z]{3}-----------------------------[0-9]"
    texts = ["a", "of the", "yes no yes", "é"]
    alone = [continuous(generate.regex(model, pattern))(text, rng=[5]) for text in texts]
    widths: list[tuple[int, int]] = []
    forward = model.forward

    def noted(input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        widths.append((input_ids.shape[0], input_ids.shape[1]))
        return forward(input_ids, *arguments)

    monkeypatch.setattr(model, "forward", noted)
    monkeypatch.setitem(FREE_TOKENS, "cpu", 1)
    free = "[a-z]{60}"
    both = continuous(generate.regex(model, f"({pattern})|({free})"))(texts * 4, rng=[5] * 16)
    assert any(rows > 1 and width == 1 for rows, width in widths)
    together = continuous(generate.regex(model, pattern))(texts, rng=[5] * 4)
    for state, index in zip(alone, range(4), strict=True):
        assert list(together)[index] == str(state)
        assert together.weights[index, 0] == pytest.approx(float(state.weights[0, 0]), abs=1e-8)
    assert both.errors == [[None]] * 16
