"""Rows without a network: the loop of the engine for one row after the other, over a vocabulary of a few tokens whose law is a function.

What a row does is done by `engine.row.Row` itself; only the forward and the draw are replaced by their plain forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont import Branch, Policy, RowView, TokenSet
from outlines_cont.engine.drawing.drawing import Draw
from outlines_cont.engine.row import Row
from outlines_cont.engine.steering import plan, take
from outlines_cont.models import Meter
from outlines_cont.samplers import multinomial
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.rows import row_of

Law = Callable[[bytes], dict[bytes, float]]
"""From the text so far to the probabilities of tokens; `b""` ends the text."""


@dataclass(frozen=True)
class ToyTokenizer:
    """Tokens given by their bytes; id 0 has none and ends a text."""

    token_bytes: tuple[bytes | None, ...]
    eos_token_id: int = 0
    fingerprint: str = "toy"

    def encode_inside(self, text: str, before: Sequence[int]) -> list[int]:
        """One token per byte."""
        return [self.token_bytes.index(bytes([byte])) for byte in text.encode()]

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.token_bytes[i] or b"" for i in token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.text_bytes(token_ids).decode(errors="replace")


@dataclass
class ToyModel:
    """A law over a few tokens, with what a row asks of a model."""

    tokens: Sequence[bytes]
    law: Law
    memo: dict[object, Any] = field(default_factory=dict)
    context_length: int | None = None
    is_recurrent: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = ToyTokenizer((None, *self.tokens))
        self.vocab_size = len(self.tokens) + 1
        self.eos_token_ids = frozenset({0})
        self._logits: dict[bytes, torch.Tensor] = {}

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """(V,) float64 after some tokens, the first of which is the prompt."""
        text = self.tokenizer.text_bytes(token_ids[1:])
        if text not in self._logits:
            law = self.law(text)
            probs = [law.get(b"", 0.0), *(law.get(token, 0.0) for token in self.tokens)]
            self._logits[text] = torch.tensor([math.log(p) if p else -1e4 for p in probs], dtype=torch.float64)
        return self._logits[text]


class Possible(Policy[bytes]):
    """Lets pass what has a probability, so that a row that has tried all of it has nothing left. The state is the text."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model

    def initial(self, row: RowView) -> bytes:
        return b""

    def advance(self, state: bytes, token_id: int) -> bytes:
        return state + (self.model.tokenizer.token_bytes[token_id] or b"")

    def branches(self, state: bytes, row: RowView) -> list[Branch]:
        law = self.model.law(state)
        possible = [i for i, token in enumerate([b"", *self.model.tokens]) if law.get(token, 0.0) > 0]
        return [Branch(sample_mask=TokenSet.of(possible))]


def run_row(model: ToyModel, policies: Sequence[Policy[Any]], seed: int, *, max_tokens: int | None = None, temperature: float = 1.0) -> Row:
    """Write one piece after a prompt of one token, and return the row as it ended."""
    source = StateRow.of_prompt([1], RandomStream(seed))
    steering = [Possible(model), *(policy.for_model(model) for policy in policies)]  # type: ignore[arg-type]
    row = row_of(source, steering, model, counts=Meter(), sampler=multinomial(), max_tokens=max_tokens, scores_end=False)  # type: ignore[arg-type]
    plan(row)
    while not row.has_ended:
        _feed(row, model)
        take(row, *_drawn(row, temperature))
        plan(row)
    return row


def _feed(row: Any, model: ToyModel) -> None:
    if row.num_pending:
        at = row.cached
        row.fed(row.num_pending, {i: model.logits(row.token_ids[: at + i + 1]) for i in row.wanted(row.num_pending)})


def _drawn(row: Row, temperature: float) -> Draw:
    assert row.logits is not None
    weights = _weights(row, temperature)
    total = np.cumsum(weights)
    token_id = int(np.searchsorted(total, row.stream.peek() * total[-1], side="right"))
    return Draw(token_id, float(row.logits[token_id]), math.log(weights[token_id] / total[-1]))


def _weights(row: Row, temperature: float) -> NDArray[np.float64]:
    """(V,) what the tokens are drawn in proportion to: 0 where the mask forbids them."""
    assert row.logits is not None
    logits = row.logits.numpy()
    mask = np.unpackbits(row.sample.mask.bitmask(len(logits)).view(np.uint8), bitorder="little")[: len(logits)].astype(bool)
    weights: NDArray[np.float64] = np.where(mask, np.exp((logits - logits[mask].max()) / temperature), 0.0)
    return np.where(weights < 1e-300, 0.0, weights)


def text_of(row: Row, model: ToyModel) -> str:
    """The text of the piece, or the name of its error."""
    return type(row.error).__name__ if row.error is not None else model.tokenizer.decode(row.piece_ids)


# All that may happen, with its probability.


@dataclass
class Choices:
    """Choices in the order in which they are made: the first ones as they were made before, then the first that there is."""

    path: list[tuple[int, list[float]]] = field(default_factory=list)
    made: int = 0

    def choose(self, probs: list[float]) -> int:
        """Return the index of what is chosen."""
        if self.made == len(self.path):
            self.path.append((next(i for i, p in enumerate(probs) if p > 0), probs))
        self.made += 1
        return self.path[self.made - 1][0]

    @property
    def prob(self) -> float:
        """The probability of the choices that were made."""
        return math.prod(probs[i] for i, probs in self.path)

    def advance(self) -> bool:
        """Go on to the next sequence of choices; return whether there is one."""
        self.made = 0
        while self.path:
            i, probs = self.path.pop()
            later = next((j for j in range(i + 1, len(probs)) if probs[j] > 0), None)
            if later is not None:
                self.path.append((later, probs))
                return True
        return False


def law_of(act: Callable[[Choices], str], limit: int = 10_000) -> dict[str, float]:
    """Return the probability of everything that `act` may return; an empty dict where that takes more calls than `limit`."""
    choices, law = Choices(), dict[str, float]()
    for _ in range(limit):
        outcome = act(choices)
        law[outcome] = law.get(outcome, 0.0) + choices.prob
        if not choices.advance():
            return law
    return {}


class ChoosingRow(Row):
    """A row whose decisions are chosen: 0 stands for every number below a factor, 1 - 1e-12 for the others."""

    choices: Choices
    decided: dict[tuple[int, ...], float]
    factor: Callable[[tuple[int, ...]], float]

    def uniform(self, *key: int) -> float:
        if key not in self.decided:
            factor = self.factor(key)
            self.decided[key] = (0.0, 1 - 1e-12)[self.choices.choose([factor, 1 - factor])]
        return self.decided[key]


def outcome_of(
    model: ToyModel,
    policies: Sequence[Policy[Any]],
    choices: Choices,
    factor: Callable[[tuple[int, ...]], float],
    *,
    max_tokens: int | None = None,
    temperature: float = 1.0,
) -> str:
    """Run one row with the draws and decisions of `choices`; return its text, or the name of its error."""
    source = StateRow.of_prompt([1], RandomStream(0))
    steering = [Possible(model), *(policy.for_model(model) for policy in policies)]  # type: ignore[arg-type]
    given: dict[str, Any] = {"max_tokens": max_tokens, "scores_end": False, "kind": ChoosingRow}
    row: Any = row_of(source, steering, model, counts=Meter(), sampler=multinomial(), **given)  # type: ignore[arg-type]
    row.choices, row.decided, row.factor = choices, {}, factor
    plan(row)
    while not row.has_ended:
        _feed(row, model)
        weights = _weights(row, temperature)
        token_id = choices.choose((weights / weights.sum()).tolist())
        assert row.logits is not None
        take(row, token_id, float(row.logits[token_id]), 0.0)
        plan(row)
    if row.error is not None:
        return type(row.error).__name__
    written = row.leave(None)
    kept = [model.logits(row.token_ids[:i])[token_id] if row.was_drawn(i) else 0.0 for i, token_id in enumerate(row.token_ids)]
    assert np.allclose(written.logprobs, kept, atol=1e-9)  # those of the final text
    return text_of(row, model)
