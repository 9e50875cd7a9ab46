"""A plain account of the weight of one row, token by token: what every operation on a state must do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from outlines_cont.models import HuggingFaceModel
from outlines_cont.state.row import GENERATED, WRITTEN, StateRow
from tests.oracle import next_logits, rescored


@dataclass(frozen=True)
class Account:
    """The id of every token, its log-probability, and whether it counts; (position, log-probability) of each end that was drawn."""

    tokens: tuple[tuple[int, float, bool], ...] = ()
    ends: tuple[tuple[int, float], ...] = ()

    @property
    def ids(self) -> list[int]:
        return [token_id for token_id, _, _ in self.tokens]

    @property
    def weight(self) -> float:
        """The sum of the log-probabilities that the row shows since the last reset, and of the ends inside of it."""
        return sum(logprob for _, logprob, counts in self.tokens if counts) + sum(logprob for _, logprob in self.ends)

    def kept(self, count: int) -> Account:
        """What is left of it in the first tokens."""
        return Account(self.tokens[:count], tuple(end for end in self.ends if end[0] <= count))

    def given(self, token_ids: Sequence[int]) -> Account:
        """The tokens that both have in common are kept, what is new was given."""
        common = self._common(token_ids)
        kept = self.kept(common)
        return Account(kept.tokens + tuple((token_id, 0.0, True) for token_id in token_ids[common:]), kept.ends)

    def _common(self, token_ids: Sequence[int]) -> int:
        pairs = zip(self.ids, token_ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(token_ids)))

    def reset(self) -> Account:
        """Nothing counts so far."""
        return Account(tuple((token_id, logprob, False) for token_id, logprob, _ in self.tokens))

    def written(self, row: StateRow, model: HuggingFaceModel) -> Account:
        """What a piece has written is scored by a run of its own; a row that failed has no scores behind the last token that was drawn."""
        kept, scores = self.kept(self._common(row.token_ids)), rescored(model, row.token_ids)
        scored = len(row.token_ids) if row.error is None else row.kinds.rfind(GENERATED) + 1
        new = tuple(
            (row.token_ids[at], scores[at] if row.kinds[at] in WRITTEN and at < scored else 0.0, True)
            for at in range(len(kept.tokens), len(row.token_ids))
        )
        ends = kept.ends
        if row.finish_reason == "stop" and row.piece is not None and row.piece.stop is None:
            law = next_logits(model, row.token_ids)[-1].log_softmax(-1)
            ends += ((len(row.token_ids), float(law[next(iter(model.eos_token_ids))])),)
        return Account(kept.tokens + new, ends)

    def joined(self, right: Account, length: int) -> Account:
        """This row and another behind it, without the start tokens of that one; both have `length` tokens together."""
        opening = len(self.tokens) + len(right.tokens) - length
        ends = tuple((max(at - opening, 0) + len(self.tokens), logprob) for at, logprob in right.ends)
        return Account(self.tokens + right.tokens[opening:], self.ends + ends)

    def check(self, row: StateRow) -> None:
        """The law: ids, log-probabilities and weight of the row are those of the account."""
        assert self.ids == list(row.token_ids)
        assert [logprob for _, logprob, _ in self.tokens] == pytest.approx(list(row.logprobs), abs=1e-6)
        assert self.weight == pytest.approx(row.weight, abs=1e-6)
