"""xgrammar with its defaults (strict mode, any whitespace), on one thread."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import xgrammar  # type: ignore[import-not-found,unused-ignore]

from benchmarks.case import Case
from benchmarks.engines.protocol import Cursor
from benchmarks.tekken import Tokenizer


class XGrammar:
    """`GrammarMatcher`, which fills a row of a bitmask made beforehand."""

    packages = ("xgrammar", "torch")

    def prepare(self, tokenizer: Tokenizer) -> None:
        spelled = [b"" if token is None else token for token in tokenizer.tokens]
        info = xgrammar.TokenizerInfo(
            spelled, xgrammar.VocabType.RAW, vocab_size=len(spelled), stop_token_ids=[tokenizer.eos_token_id]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._rows = np.zeros((1, (len(spelled) + 31) // 32), np.int32)

    def compile(self, case: Case) -> Any:
        if case.kind == "grammar":
            raise ValueError("reads no grammars in the language of Lark")
        if case.kind == "schema":
            return self._compiler.compile_json_schema(case.source)
        pattern = case.source if case.kind == "regex" else "|".join(map(re.escape, case.source))
        return self._compiler.compile_regex(pattern)

    def cursor(self, constraint: Any) -> Cursor:
        matcher = xgrammar.GrammarMatcher(constraint)
        return Cursor(partial(matcher.fill_next_token_bitmask, self._rows), matcher.accept_token, lambda: self._rows[0])

    def drop_masks(self) -> bool:
        return False

    def reported_mb(self, constraint: Any) -> float | None:
        return None if constraint is None else constraint.memory_size_bytes / 1e6


def make() -> XGrammar:
    """Make the engine."""
    return XGrammar()
