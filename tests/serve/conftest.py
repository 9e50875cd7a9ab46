"""Servers of small models, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlines_cont import models
from tests.chat_models import chat_model
from tests.serve.running import Running


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    """A server of the bundled model."""
    with Running(models.tiny()) as running:
        yield running


@pytest.fixture(scope="module")
def thinking() -> Iterator[Running]:
    """A server of a model whose replies begin with thoughts."""
    with Running(chat_model("Qwen3")) as running:
        yield running
