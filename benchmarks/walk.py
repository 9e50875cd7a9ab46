"""One case with one engine: compile, the first walk, walks with dropped masks, walks again; every call timed by itself."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from benchmarks.case import Case
from benchmarks.engines import Cursor, Engine
from benchmarks.machine import resident_mb

CLOCKS = {"wall": perf_counter_ns, "processor": process_time_ns}
"""Clocks in nanoseconds; the time of the processor is for a machine that does other things, too."""


class Refused(Exception):
    """An engine does not allow a token of the text, or the end after it."""


@dataclass(slots=True)
class Walks:
    """Times in nanoseconds, one per mask (a text of n tokens has n + 1) or per token.

    Attributes:
        compile_ns: from the source to the constraint.
        first_mask_ns: from the source to the first mask.
        first: masks of the first walk, without that one.
        dropped: masks of later walks, finished masks dropped before each; empty where an engine has no such cache.
        warm: masks of later walks.
        advance: tokens of the first walk.
        memory_mb: growth of resident memory from before `compile` to after the first walk.
        reported_mb: what the library says of the constraint.
        num_allowed: tokens that the masks of the walk allow, all together.
    """

    compile_ns: int = 0
    first_mask_ns: int = 0
    first: list[int] = field(default_factory=list)
    dropped: list[list[int]] = field(default_factory=list)
    warm: list[list[int]] = field(default_factory=list)
    advance: list[int] = field(default_factory=list)
    memory_mb: float = 0.0
    reported_mb: float | None = None
    num_allowed: int = 0

    def as_message(self) -> dict[str, Any]:
        """The same as a dict for JSON."""
        return asdict(self)


def measure(engine: Engine, case: Case, token_ids: Sequence[int], *, repeats: int, clock: str = "wall") -> Walks:
    """Run all walks of one case; the state of the engine before it is what `prepare` and a trivial constraint left.

    Args:
        engine: prepared.
        case: what to compile.
        token_ids: its text, and the EOS id at the end.
        repeats: walks of each kind after the first.
        clock: one of `CLOCKS`.

    Raises:
        Refused: the engine does not accept the text.
        Exception: whatever the library raises at a source that it cannot read.
    """
    out, now = Walks(), CLOCKS[clock]
    gc.collect()
    before = resident_mb()
    start = now()
    constraint = engine.compile(case)
    out.compile_ns = now() - start
    cursor = engine.cursor(constraint)
    cursor.fill()
    out.first_mask_ns = now() - start
    out.first, out.advance = _walk(cursor, token_ids, now)
    del out.first[0]  # the mask that `first_mask_ns` counts
    out.memory_mb, out.reported_mb = resident_mb() - before, engine.reported_mb(constraint)
    for _ in range(repeats):
        if engine.drop_masks():
            out.dropped.append(_walk(engine.cursor(constraint), token_ids, now)[0])
    for _ in range(repeats):
        out.warm.append(_walk(engine.cursor(constraint), token_ids, now)[0])
    out.num_allowed = _count(engine.cursor(constraint), token_ids)
    return out


def _walk(cursor: Cursor, token_ids: Sequence[int], now: Callable[[], int]) -> tuple[list[int], list[int]]:
    fill, advance = cursor.fill, cursor.advance
    fills, advances = [], []
    for position, token_id in enumerate(token_ids):
        start = now()
        fill()
        fills.append(now() - start)
        if not allows(cursor, token_id):
            what = f"token {token_id}" if position + 1 < len(token_ids) else "the end"
            raise Refused(f"{what} was refused after {position} of {len(token_ids) - 1} tokens of the text")
        if position + 1 < len(token_ids):
            start = now()
            advance(token_id)
            advances.append(now() - start)
    return fills, advances


def allows(cursor: Cursor, token_id: int) -> bool:
    """Whether the mask that a cursor made last allows a token."""
    return bool(int(cursor.words()[token_id >> 5]) >> (token_id & 31) & 1)


def _count(cursor: Cursor, token_ids: Sequence[int]) -> int:
    total = 0
    for position, token_id in enumerate(token_ids):
        cursor.fill()
        total += sum(map(int.bit_count, cursor.words().view(np.uint32).tolist()))
        if position + 1 < len(token_ids):
            cursor.advance(token_id)
    return total
