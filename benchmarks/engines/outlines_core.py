"""outlines-core: everything is compiled ahead, into a table of tokens per state."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import numpy as np
from outlines_core import Guide, Index, Vocabulary  # type: ignore[import-not-found,unused-ignore]
from outlines_core.json_schema import build_regex_from_schema  # type: ignore[import-not-found,unused-ignore]

from benchmarks.case import Case
from benchmarks.engines.protocol import Cursor
from benchmarks.tekken import Tokenizer


class OutlinesCore:
    """`Guide`, which writes each mask through a pointer into a row made beforehand."""

    packages = ("outlines-core",)

    def prepare(self, tokenizer: Tokenizer) -> None:
        ids: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(tokenizer.tokens):
            if token:
                ids.setdefault(token, []).append(token_id)
        self._vocabulary = Vocabulary(tokenizer.eos_token_id, ids)
        self._row = np.zeros((len(tokenizer.tokens) + 31) // 32, np.int32)

    def compile(self, case: Case) -> Index:
        if case.kind == "grammar":
            raise ValueError("reads no grammars in the language of Lark")
        if case.kind == "schema":
            pattern = build_regex_from_schema(json.dumps(case.source))
        else:
            pattern = case.source if case.kind == "regex" else "|".join(map(re.escape, case.source))
        return Index(pattern, self._vocabulary)

    def cursor(self, constraint: Index) -> Cursor:
        guide = Guide(constraint)
        fill = partial(guide.write_mask_into, self._row.ctypes.data, self._row.size, self._row.itemsize)
        return Cursor(fill, partial(guide.advance, return_tokens=False), lambda: self._row)

    def drop_masks(self) -> bool:
        return False

    def reported_mb(self, constraint: Any) -> float | None:
        return None


def make() -> OutlinesCore:
    """Make the engine."""
    return OutlinesCore()
