"""Fixtures for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.vocabularies import Tokens, sentencepiece_token_bytes, tekken_token_bytes

# No deadline: how long an example takes depends on what else the machine does.
settings.register_profile("tests", deadline=None, print_blob=True)
# The same examples in every run (`pytest --hypothesis-profile=ci`): a change is judged by what it does, not by luck.
settings.register_profile("ci", parent=settings.get_profile("tests"), derandomize=True)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def tekken() -> tuple[Tokens, list[int]]:
    """The 131,072 tokens of Mistral's tekken vocabulary, and its EOS ids."""
    return tekken_token_bytes()


@pytest.fixture(scope="session")
def sentencepiece_32k() -> tuple[Tokens, list[int]]:
    """The 32,768 tokens of Mistral's SentencePiece vocabulary, and its EOS ids."""
    return sentencepiece_token_bytes()
