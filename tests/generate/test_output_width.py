"""How many logits a model has: as many as its output layer, which may be wider than the vocabulary of its configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outlines_cont.models.hugging_face import _vocab_size


@pytest.mark.parametrize(
    ("head", "expected"),
    [(SimpleNamespace(weight=torch.zeros(40, 8)), 40), (SimpleNamespace(), 32), (None, 32)],
)
def test_the_width_is_that_of_the_output_layer_where_there_is_one(head: Any, expected: int) -> None:
    config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(vocab_size=32))
    model: Any = SimpleNamespace(get_output_embeddings=lambda: head, config=config)
    assert expected == _vocab_size(model)
