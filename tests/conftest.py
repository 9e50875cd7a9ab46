"""Fixtures for all tests.

Only what every test needs is imported here: the tests of `fsm` run without torch, and where `tests.vocabularies` cannot be read.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.page_server import PageServer
    from tests.vocabularies import Tokens

# No deadline: how long an example takes depends on what else the machine does.
settings.register_profile("tests", deadline=None, print_blob=True)
# The same examples in every run (`pytest --hypothesis-profile=ci`): a change is judged by what it does, not by luck.
settings.register_profile("ci", parent=settings.get_profile("tests"), derandomize=True)
settings.load_profile("tests")


# Modules are hardly garbage: no collection looks through them while they are imported.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave out of every later garbage collection what the modules hold: a collection takes milliseconds instead of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let all of it be freed at the end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def page_server() -> Iterator[PageServer]:
    """Runs programs in other processes, with torch imported once."""
    from tests.page_server import PageServer

    with PageServer() as server:
        yield server


@pytest.fixture(scope="session")
def tekken() -> tuple[Tokens, list[int]]:
    """The 131,072 tokens of Mistral's tekken vocabulary, and its EOS ids."""
    from tests.vocabularies import tekken_token_bytes

    return tekken_token_bytes()


@pytest.fixture(scope="session")
def sentencepiece_32k() -> tuple[Tokens, list[int]]:
    """The 32,768 tokens of Mistral's SentencePiece vocabulary, and its EOS ids."""
    from tests.vocabularies import sentencepiece_token_bytes

    return sentencepiece_token_bytes()
