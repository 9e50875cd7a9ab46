"""This repository's `fsm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fsm
from benchmarks.case import Case
from benchmarks.engines.protocol import Cursor
from benchmarks.tekken import Tokenizer

_READ: dict[str, Callable[[Any], fsm.Expression]] = {
    "regex": fsm.regex,
    "choice": fsm.choice,
    "schema": fsm.json_schema,
    "grammar": fsm.grammar,
}


class Ours:
    """`fsm.TokenFSM` over one `fsm.Vocabulary`."""

    packages = ("outlines-cont", "numpy")
    vocabulary: fsm.Vocabulary

    def prepare(self, tokenizer: Tokenizer) -> None:
        self.vocabulary = fsm.Vocabulary(tokenizer.tokens, [tokenizer.eos_token_id])

    def compile(self, case: Case) -> fsm.TokenFSM:
        return fsm.TokenFSM(_READ[case.kind](case.source), self.vocabulary)

    def cursor(self, constraint: fsm.TokenFSM) -> Cursor:
        bitmask, next_state, state = constraint.bitmask, constraint.next_state, constraint.initial_state

        def fill() -> NDArray[np.int32]:
            return bitmask(state)

        def advance(token_id: int) -> None:
            nonlocal state
            state = next_state(state, token_id)

        return Cursor(fill, advance, fill)

    def drop_masks(self) -> bool:
        self.vocabulary.masks.clear()
        return True

    def reported_mb(self, constraint: Any) -> float | None:
        return self.vocabulary.nbytes / 1e6


def make() -> Ours:
    """Make the engine."""
    return Ours()
