"""llguidance, with its default slices and default whitespace."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, grammar_from  # type: ignore[import-not-found,unused-ignore]

from benchmarks.case import Case
from benchmarks.engines.protocol import Cursor
from benchmarks.tekken import Tokenizer


class LLGuidance:
    """`LLMatcher`, which writes each mask through a pointer into a row made beforehand."""

    packages = ("llguidance",)

    def prepare(self, tokenizer: Tokenizer) -> None:
        num_tokens = len(tokenizer.tokens)
        self._tokenizer = LLTokenizer.from_tiktoken(
            encoder=tokenizer.ranks(),
            special_tokens={f"<special {i}>": i for i, token in enumerate(tokenizer.tokens) if token is None},
            pattern=tokenizer.pattern,
            eos_token=tokenizer.eos_token_id,
            n_vocab=num_tokens,
        )
        self._row = np.zeros((num_tokens + 31) // 32, np.int32)

    def compile(self, case: Case) -> LLMatcher:
        kind = {"regex": "regex", "choice": "choice", "schema": "json_schema", "grammar": "lark"}[case.kind]
        text = case.source if case.kind in ("regex", "grammar") else json.dumps(case.source)
        matcher = LLMatcher(self._tokenizer, grammar_from(kind, text), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def cursor(self, constraint: LLMatcher) -> Cursor:
        constraint.reset()
        fill = partial(constraint.unsafe_compute_mask_ptr, self._row.ctypes.data, self._row.nbytes)
        return Cursor(fill, constraint.consume_token, lambda: self._row)

    def drop_masks(self) -> bool:
        return False

    def reported_mb(self, constraint: Any) -> float | None:
        return None


def make() -> LLGuidance:
    """Make the engine."""
    return LLGuidance()
