"""`row_of`: a row of the engine with a piece under given policies, for tests of the loop itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlines_cont.engine.piece import Piece, RowLimits
from outlines_cont.engine.row import Row
from outlines_cont.meter import Meter
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.policy import Policy
from outlines_cont.samplers import greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import StateRow


def row_of(
    source: StateRow,
    policies: Sequence[Policy[Any]],
    model: HuggingFaceModel,
    *,
    counts: Meter,
    sampler: Sampler | None = None,
    resume: bool = False,
    kind: type[Row] = Row,
    **options: Any,
) -> Row:
    """Return a row that begins a piece, or resumes one; `options` are those of `Piece`."""
    limits = RowLimits.of(model, ())
    piece = Piece(policies=policies, sampler=sampler or greedy(), limits=limits, **options)
    return kind(source, model, piece, counts=counts, resume=resume)
