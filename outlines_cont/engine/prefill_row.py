"""`PrefillRow`: prefill of one sequence.

Its tokens are fed beside those of other rows, nothing is sampled, and it leaves with the logits that were wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from outlines_cont.engine.row import Row, Want
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.state.row import StateRow


class PrefillRow(Row):
    """A row whose tokens are fed for their logits, and that samples nothing.

    Attributes:
        lines: (V,) logits after the token at an index, for every wanted index that was fed.
        num_fed: how many tokens were fed for it.
    """

    def __init__(
        self, source: StateRow, model: LanguageModel, *, counts: Meter, indices: Sequence[int] | None = None
    ) -> None:
        """Feed a row as far as its logits are wanted.

        Args:
            source: what is fed; it is not changed.
            model: what feeds it.
            counts: where the row counts its work.
            indices: of the tokens after which logits are wanted, ascending, at least one; None for the last token alone.
        """
        indices = [len(source.token_ids) - 1] if indices is None else indices
        kept = min(source.cached, indices[0])
        held = replace(source, kv=source.kv[:kept] if source.kv is not None and kept else None)
        super().__init__(held, [NullPolicy()], model, counts=counts)
        self.tokens = self.tokens.at(indices[-1] + 1)
        counts.recomputed_tokens += min(source.cached, len(self.token_ids)) - kept
        self.lines: dict[int, torch.Tensor] = {}
        self.num_fed = 0
        self._indices = indices

    @property
    def is_ready(self) -> bool:
        """Never: nothing is sampled."""
        return False

    @property
    def num_reusable(self) -> int:
        """How many of the first tokens may have been fed by others."""
        return self._indices[0]

    def wanted(self, chunk_size: int) -> list[int]:
        """Return the indices into the first `chunk_size` pending tokens after which logits are wanted."""
        return [index - self.cached for index in self._indices if 0 <= index - self.cached < chunk_size]

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Take the wanted logits; copies, so that those of the other rows are let go."""
        self.lines.update({self.cached + index: line.clone() for index, line in logits.items()})
        self.num_fed += count
        super().fed(count, {})

    def leave(self, kv: RowKV | None) -> StateRow:
        """Return the row as it came, with its new keys, values and logits, or with its error."""
        if self.error is not None:
            return replace(self.source, error=self.error)
        return replace(self.source, kv=kv, logits=self.lines.get(len(self.source.token_ids) - 1))

    def decide(self) -> None:
        """Wait until all wanted logits are there, and leave."""
        lacking = [index for index in self._indices if index not in self.lines]
        if self.has_ended or not lacking:
            self.want = Want.LEAVE
        else:
            self.lose(lacking[0])
            self.want = Want.SAMPLE


class NullPolicy(Policy[None]):
    """The policy of a row that never asks its policies (null object)."""

    def initial(self, row: RowView) -> None:
        """Return None: there is no state."""

    def branches(self, state: None, row: RowView) -> list[Branch]:
        """Return no branch."""
        return []

    def advance(self, state: None, token_id: int) -> Any:
        """Return None: there is no state."""
