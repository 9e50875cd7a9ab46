"""Rows and jobs of the engine with a piece under given policies, for tests of the loop itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlines_cont import Engine, Policy
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import Piece, RowLimits
from outlines_cont.engine.row import Row
from outlines_cont.models import HuggingFaceModel, Meter
from outlines_cont.policies import FreeText
from outlines_cont.samplers import Sampler, greedy
from outlines_cont.sampling.random_stream import RandomStream
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


def job_of(
    model: HuggingFaceModel, token_ids: Sequence[int], policies: Sequence[Policy[Any]] = (), *, seed: int = 3, **options: Any
) -> Job:
    """A job of one row, of free text where no policies are given; `options` are those of `row_of`."""
    counts, source = Meter(), StateRow.of_prompt(token_ids, RandomStream(seed))
    return Job([row_of(source, policies or [FreeText.of_model(model)], model, counts=counts, **options)], counts)


def finished(job: Job, engine: Engine) -> dict[int, StateRow]:
    """Run a job to its end; its rows, and their forks, by their numbers."""
    engine.submit(job)
    while not job.is_over:
        engine.advance(job)
    return job.done
