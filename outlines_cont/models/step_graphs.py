"""`StepGraphs`: our own forward over slots of a pool, whose steps of one token for each row are CUDA graphs: one launch in place of some
hundred. A step is padded to one of a few sizes, for each of which a graph is captured after some steps; what a graph reads is at fixed
addresses: weights, the pool, static inputs and rotary tables. Anything else runs operator by operator: prompts, drafts, more rows, longer
rows, and sizes whose graph could not be captured or has other logits than the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from outlines_cont.kv.growing import Tails
from outlines_cont.kv.paged.cache import PagedTails
from outlines_cont.models.capability import relative_error
from outlines_cont.models.fused import FusedDecoder

ROWS = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = (1024, 4096, 16384)
"""The sizes of graphs. A graph of 4,096 columns takes rows of fewer tokens, too; the kernel of the attention reads those alone."""

# So many steps of a size run before it is captured: a short text does not pay for what takes as long as some steps.
_CAPTURE_AFTER = 8
# A graph runs the operators of the step with which it is compared; more units in the last place than this are an error.
_LARGEST_ERROR = 16


class Capture(Protocol):
    """A step that was captured."""

    def replay(self) -> Tensor:
        """Run it again, and return its logits, which the next replay overwrites."""


class CudaCapture:
    """A CUDA graph of a step."""

    def __init__(self, step: Callable[[], Tensor], other: Capture | None) -> None:
        """Capture a step, in the memory of another graph if there is one: no two of them run at once."""
        memory = other._graph.pool() if isinstance(other, CudaCapture) else None
        self._graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=memory, capture_error_mode="thread_local"):
            self._logits = step()

    def replay(self) -> Tensor:
        """See `Capture`."""
        self._graph.replay()
        return self._logits


@dataclass(slots=True)
class _Size:
    """The steps of one size: how many have run, and their graph, None while there is none.

    `tables` are what the graph reads and nothing else may keep: the rotary tables.
    """

    num_steps: int = 0
    graph: Capture | None = None
    is_refused: bool = False
    tables: Sequence[Tensor] = ()


class StepGraphs:
    """A decoder with graphs, to be called as the decoder is.

    Args:
        decoder: our own forward.
        capture: makes a capture of a step, beside another one or None; for tests another than that of CUDA.
        rows, columns: the sizes, ascending.
        after: so many steps of a size run before it is captured.
    """

    def __init__(
        self,
        decoder: FusedDecoder,
        *,
        capture: Callable[[Callable[[], Tensor], Capture | None], Capture] = CudaCapture,
        rows: Sequence[int] = ROWS,
        columns: Sequence[int] = COLUMNS,
        after: int = _CAPTURE_AFTER,
    ) -> None:
        self._decoder, self._capture, self._after = decoder, capture, after
        self._rows, self._columns = rows, columns
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._of: tuple[object, int] | None = None  # the pool, and its version, that graphs read
        self._given: Tensor  # (3, rows, 1), ids, positions and slots
        self._lengths: Tensor  # (rows,)
        self._table: Tensor  # (rows, columns)
        self._source: Tensor | None = None  # what was copied to the table
        self._num_rows = 0

    def __call__(
        self, input_ids: Tensor, mask: Tensor | None, position_ids: Tensor, tails: Tails, columns: Sequence[int]
    ) -> Tensor:
        """Feed (R, Q) ids on top of the tails and return (R, len(columns), V) logits; see `LanguageModel.forward`."""
        if isinstance(tails, PagedTails) and input_ids.shape[1] == 1:
            graph = self._graph_of(tails)
            if graph is not None:
                # A copy, as the next replay writes to the same memory.
                return graph.replay()[: len(input_ids)].to(torch.float32, copy=True)
        return self._decoder(input_ids, mask, position_ids, tails, columns)

    def _graph_of(self, tails: PagedTails) -> Capture | None:
        """Return the graph of a step, whose inputs are set; None if there is none."""
        rows = next((size for size in self._rows if size >= len(tails.lengths)), None)
        columns = next((size for size in self._columns if size >= tails.table.shape[1]), None)
        if rows is None or columns is None:
            return None
        self._begin(tails)
        size = self._sizes.setdefault((rows, columns), _Size())
        size.num_steps += 1
        if size.is_refused or size.num_steps <= self._after:
            return None
        self._fill(tails)
        if size.graph is None:
            size.tables = self._decoder.prepare(columns)
            size.graph = self._captured(rows, columns, tails)
            size.is_refused = size.graph is None
        return size.graph

    def _begin(self, tails: PagedTails) -> None:
        """Forget all graphs if the pool has other tensors than those that they read."""
        pool = tails.pool
        if self._of == (pool, pool.version):
            return
        self._of, self._sizes, self._source, self._num_rows = (pool, pool.version), {}, None, 0
        rows, device = self._rows[-1], tails.table.device
        self._given = torch.zeros((3, rows, 1), dtype=torch.int64, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._table = torch.zeros((rows, self._columns[-1]), dtype=torch.int32, device=device)

    def _fill(self, tails: PagedTails) -> None:
        """Copy the inputs of a step to those of the graphs. Rows behind them are padding: ids, slots and lengths of 0."""
        count = len(tails.lengths)
        if count < self._num_rows:
            self._given[:, count:] = 0
            self._lengths[count:] = 0
        self._num_rows = count
        self._given[:, :count] = tails.given
        self._lengths[:count] = tails.lengths
        if tails.whole is not self._source:
            columns = min(tails.whole.shape[1], self._columns[-1])
            self._table[:count, :columns] = tails.whole[:, :columns]
            self._source = tails.whole

    def _captured(self, rows: int, columns: int, tails: PagedTails) -> Capture | None:
        """Return a graph of the step whose inputs are set; None if that fails, or its logits are not those of the operators."""
        static = PagedTails(tails.pool).aim(self._given[:, :rows], self._lengths[:rows], self._table[:rows, :columns])
        ids, positions, _ = static.given.unbind()

        def step() -> Tensor:
            self._decoder.forget_space()
            try:
                return self._decoder(ids, None, positions, static, [0])
            finally:
                self._decoder.forget_space()

        wanted = step()  # which also compiles what is compiled at its first use
        other = next((size.graph for size in self._sizes.values() if size.graph is not None), None)
        try:
            graph = self._capture(step, other)
        except RuntimeError:  # of an operator that cannot be captured
            return None
        error = relative_error(graph.replay().double(), wanted.double())
        return graph if error <= _LARGEST_ERROR * torch.finfo(wanted.dtype).eps else None
