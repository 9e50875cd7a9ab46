"""Protocols of a call: `PieceMaker`, what a run uses of a generator, and `EventSource`, what streams use of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol

from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row
from outlines_cont.events.partial_type import PartialType
from outlines_cont.generation.options import Options
from outlines_cont.interfaces import JobRunner, LanguageModel
from outlines_cont.policies.policy import Policy
from outlines_cont.samplers import BeamSearch
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState


class PieceMaker(Protocol):
    """What a run uses of a generator; documented in `generate.Generator`."""

    @property
    def model(self) -> LanguageModel: ...
    @property
    def sampler(self) -> Sampler | BeamSearch: ...
    @property
    def source(self) -> str: ...
    @property
    def partial_type(self) -> PartialType | None: ...
    @property
    def unbounded(self) -> tuple[tuple[str, str], ...]: ...

    def draft_of(self, options: Options) -> Any: ...
    def policies(self, options: Options) -> list[Policy[Any]]: ...
    def finish(self, row: StateRow) -> StateRow: ...
    def is_whole(self, row: StateRow) -> bool: ...


class EventSource(Protocol):
    """What streams use of a run; documented in `generation.run.Run`."""

    maker: PieceMaker
    rows: list[Row | None]
    results: list[StateRow]
    batch_size: int
    num_samples: int

    @property
    def engine(self) -> JobRunner: ...
    @property
    def job(self) -> Job: ...

    def steps(self) -> Generator[None, None, None]: ...
    def async_steps(self) -> AsyncGenerator[None, None]: ...
    def finished(self, at: int, row: StateRow) -> StateRow: ...
    def is_whole(self, row: StateRow) -> bool: ...
    def snapshot(self) -> SequenceState: ...
    def leave(self) -> SequenceState: ...
