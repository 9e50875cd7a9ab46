"""The loop: rows run together until each has ended, one forward per step.

Left out so far: rows that join a running loop, and masks that are computed while the forward runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from outlines_cont.engine.branch import TokenSet
from outlines_cont.engine.row import Draw, Row, Want
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv import KVBatch, RecurrentBatch, open_batch
from outlines_cont.models.meter import Meter
from outlines_cont.samplers import Sampler
from outlines_cont.state_row import StateRow


class Loop:
    """Rows that run together with one sampler.

    Attributes:
        rows: those that still run.
        done: what became of the others, by their index at the beginning.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[Row], sampler: Sampler, counts: Meter) -> None:
        self.rows = list(rows)
        self.done: dict[int, StateRow] = {}
        self._model = model
        self._sampler = sampler
        self._counts = counts
        self._index = {id(row): index for index, row in enumerate(rows)}
        self._kv: KVBatch | RecurrentBatch | None = None
        self._last_mask: TokenSet | None = None
        self._last_refused = torch.empty(0)

    def step(self) -> None:
        """Ask every row what it wants, let those that have ended leave, feed what is pending, sample."""
        for row in self.rows:
            row.plan()
        self._leave()
        with torch.inference_mode():
            if self.rows:
                logits = self._feed()
                self._sample([row for row in self.rows if row.want is Want.SAMPLE], logits)
        self._model.count(self._counts)
        self._counts.clear()

    def _leave(self) -> None:
        """Take the rows that have ended out of the batch, each with its keys and values."""
        leaving = [i for i, row in enumerate(self.rows) if row.want is Want.LEAVE]
        if not leaving:
            return
        if self._kv is None:
            shares = [row.source.kv for row in self.rows]
        elif len(leaving) == len(self.rows):
            shares = self._kv.release_all()
        else:
            shares = [self._kv.release(i) if i in leaving else None for i in range(len(self.rows))]
        for i in leaving:
            row, share = self.rows[i], shares[i]
            self._settle(row, row.leave(share[: row.cached] if share is not None else None))
        staying = [i for i in range(len(self.rows)) if i not in leaving]
        if self._kv is not None and staying:
            self._kv.keep(staying)
        self.rows = [self.rows[i] for i in staying]

    def _settle(self, row: Row, state_row: StateRow) -> None:
        """Take in what has become of a row."""
        self.done[self._index[id(row)]] = state_row

    def _feed(self) -> torch.Tensor | None:
        """Feed the pending tokens of all rows in one forward; score the forced ones among them.

        Returns:
            (R, V) logits to sample from, where those of the forward are just that; else None, and each row has its own.
        """
        if self._kv is None and any(row.chunk() for row in self.rows):
            self._kv = open_batch(self._model, [row.source.kv for row in self.rows])
        if self._kv is not None:
            for i, row in enumerate(self.rows):
                # Keys and values may have been evicted since the row began; what is gone is pending again.
                row.lose(self._kv.lengths[i])
                if row.cached < self._kv.lengths[i]:
                    self._kv.rewind(i, row.cached)
                    row.lose(self._kv.lengths[i])
        chunks = [row.chunk() for row in self.rows]
        if self._kv is None or not any(chunks):
            self._refuse_deadlock()
            return None
        fed = self._kv.feed(chunks, [row.wanted() for row in self.rows])
        self._counts.forwards += 1
        self._score(fed.logits, fed.places)
        for i, (row, chunk) in enumerate(zip(self.rows, chunks, strict=True)):
            if chunk:
                row.fed(len(chunk), {index: fed.logits[i, at] for index, at in fed.places[i].items()})
        plain = fed.logits.shape[1] == 1 and all(map(len, chunks)) and all(row.want is Want.SAMPLE for row in self.rows)
        return fed.logits[:, 0] if plain else None

    def _score(self, logits: torch.Tensor, places: Sequence[dict[int, int]]) -> None:
        """Give every row that was fed the log-probabilities of its forced tokens."""
        rows = [(i, row, row.unscored()) for i, row in enumerate(self.rows) if row.want is not Want.WAIT]
        asked = [(i, places[i][index], token_id) for i, _, tokens in rows for index, token_id in tokens]
        if not asked:
            return
        row_index, place, token_ids = torch.tensor(asked, device=logits.device).unbind(1)
        picked = logits[row_index, place]
        scores = iter((picked.gather(1, token_ids[:, None])[:, 0] - picked.logsumexp(1)).tolist())
        for _, row, tokens in rows:
            if tokens:
                row.score([next(scores) for _ in tokens])

    def _sample(self, rows: list[Row], logits: torch.Tensor | None) -> None:
        """Draw a token for every row, all at once."""
        if not rows:
            return
        logits = self._logits_of(rows, logits)
        norm = logits.logsumexp(dim=-1)
        masked = self._masked(logits, [row.mask for row in rows])
        uniforms = None
        if self._sampler.needs_random:
            uniforms = torch.tensor([row.stream.draw() for row in rows], dtype=torch.float64)
        token_counts = [row.token_counts for row in rows] if self._sampler.needs_counts else None
        token_ids, sampling_logprobs = self._sampler.sample(masked, uniforms, token_counts)
        logprobs = logits.gather(-1, token_ids[:, None])[:, 0] - norm
        # One transfer from the device per step; ids up to 2 ** 24 are exact in float32.
        table = torch.stack([token_ids.to(logits.dtype), norm, logprobs, sampling_logprobs])
        for row, (token_id, *numbers) in zip(rows, table.T.tolist(), strict=True):
            self._give(row, int(token_id), numbers)

    def _logits_of(self, rows: list[Row], logits: torch.Tensor | None) -> torch.Tensor:
        """Return (R, V) logits of rows that want a token: `logits`, or where those are None what each row has."""
        return torch.stack([row.logits for row in rows if row.logits is not None]) if logits is None else logits

    def _give(self, row: Row, token_id: int, numbers: list[float]) -> None:
        norm, logprob, sampling_logprob = numbers
        if not self._fails(row, norm, sampling_logprob):
            row.take(Draw(token_id, logprob, sampling_logprob))

    def _fails(self, row: Row, norm: float, sampling_logprob: float) -> bool:
        """Return whether no token can be drawn for a row, and end it with the reason."""
        if not math.isfinite(norm):
            row.fail(InvalidLogits(_INVALID.format(row.place)))
        elif not math.isfinite(sampling_logprob):
            row.fail(DeadEnd(_DEAD_END.format(row.place)))
        return row.error is not None

    def _masked(self, logits: torch.Tensor, masks: list[TokenSet]) -> torch.Tensor:
        """Return the logits with minus infinity where a row's mask has no bit."""
        if all(mask is TokenSet.all for mask in masks):
            return logits
        if all(mask is masks[0] for mask in masks):
            # Free text, step after step, or one row: what was refused last time is likely refused again.
            if masks[0] is not self._last_mask:
                self._last_mask, self._last_refused = masks[0], _refused(masks[:1], logits)
            return logits.masked_fill(self._last_refused, -torch.inf)
        return logits.masked_fill(_refused(masks, logits), -torch.inf)

    def _refuse_deadlock(self) -> None:
        if all(row.want is Want.WAIT for row in self.rows):
            for row in self.rows:
                row.fail(UnsupportedBranch("every row of the loop waits; no row is left that could wake another"))


def run(
    model: LanguageModel, rows: Sequence[Row], sampler: Sampler, counts: Meter, done: dict[int, StateRow]
) -> Iterator[None]:
    """Run rows until all have ended, and yield after each step; `done` takes what became of each, by its index."""
    together = len(rows) == 1 or model.can_stack
    groups = [range(len(rows))] if together else [range(i, i + 1) for i in range(len(rows))]
    for group in groups:
        loop = Loop(model, [rows[i] for i in group], sampler, counts)
        while loop.rows:
            loop.step()
            done.update((group[i], row) for i, row in loop.done.items())
            yield


_INVALID = (
    "expected finite logits from the model after {}, got NaN, an infinity, or minus infinity for every token. "
    "The weights or their float type may be at fault: try `dtype='float32'`, and check the checkpoint."
)
_DEAD_END = (
    "every token that the constraint allows after {} has probability zero in the model. "
    "The model itself masks tokens that the text needs; loosen the constraint, or use another model."
)


def _refused(masks: Sequence[TokenSet], logits: torch.Tensor) -> torch.Tensor:
    """Return (len(masks), V) bool, True for the tokens that a mask leaves out."""
    vocab_size = logits.shape[-1]
    words = np.stack([mask.bitmask(vocab_size) for mask in masks])
    bits = np.unpackbits(words.view(np.uint8), axis=-1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits ^ 1).to(logits.device).bool()
