"""`score_rows`: the log-probabilities that a model gives to tokens that are given, with the most probable tokens in their place
(`TokenScore`).
`score_texts`: those of texts after prompts, for `model.score`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from outlines_cont.engine.prefill_row import PrefillRow, run_rows
from outlines_cont.engine.row import Row, invalid_logits
from outlines_cont.errors import BatchMismatch, ModelMismatch, PromptTypeError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.text import extended
from outlines_cont.state.tokens import Given, as_given, check_length, checked_given, prompt_ids, prompt_row

# How many logits are held at a time, 256 MB in float32, and how many rows run together.
_MAX_LOGITS, _MAX_ROWS = 2**26, 32
_LEAST = 16
_NOTHING = torch.empty(0, device="cpu")  # in place of logits, which are not kept


class TokenScore(NamedTuple):
    """A token of a row.

    Attributes:
        logprob: the natural logarithm of its probability, given the tokens before it.
        top: the most probable tokens in its place, with their log-probabilities.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class _ScoredRow(PrefillRow):
    """A row whose tokens from one on are scored; `limit` is how many of them are fed in a forward."""

    def __init__(
        self, source: StateRow, model: LanguageModel, first: int, top: int, *, counts: Meter, limit: int
    ) -> None:
        super().__init__(source, model, counts=counts, indices=range(first - 1, len(source.token_ids) - 1))
        self.scores: dict[int, TokenScore] = {}
        self._top, self._limit = top, limit

    @property
    def num_pending(self) -> int:
        """How many tokens are to be fed in this step: all before the first that is scored, or so many that their logits have room."""
        before, most = self._indices[0] - self.cached, super().num_pending
        return min(most, max(before, 0) + self._limit)

    def chunk(self) -> list[int]:
        """Return the pending ids of this step."""
        return self.tokens.ids[self.cached : self.cached + self.num_pending]

    def fed(self, count: int, logits: dict[int, torch.Tensor]) -> None:
        """Score the tokens after those that were fed."""
        if logits:
            indices = [self.cached + index for index in logits]
            self._note(indices, torch.stack([*logits.values()]).log_softmax(-1))
        self.num_fed += count
        Row.fed(self, count, {})

    def _note(self, indices: Sequence[int], normal: torch.Tensor) -> None:
        ids = torch.tensor([self.source.token_ids[index + 1] for index in indices], device=normal.device)
        logprobs = normal.gather(1, ids[:, None])[:, 0].tolist()
        if any(map(math.isnan, logprobs)):
            self.guarded(lambda: self.fail(invalid_logits(self.excerpt)))
        tops: list[Any] = [()] * len(indices)
        if self._top:
            values, others = (column.tolist() for column in normal.topk(min(self._top, normal.shape[1]), dim=-1))
            tops = [tuple(zip(*pair, strict=True)) for pair in zip(others, values, strict=True)]
        for index, logprob, top in zip(indices, logprobs, tops, strict=True):
            self.found[index] = _NOTHING
            self.scores[index + 1] = TokenScore(logprob, top)


def score_rows(
    model: LanguageModel, rows: Sequence[StateRow], firsts: Sequence[int], top: int = 0
) -> list[list[TokenScore]]:
    """Return the score of each token of rows, of each row from the token at `firsts` on, 1 or larger; the `top` most probable tokens, too.

    Raises:
        NotRecomputable: a pinned token would be fed again.
        Exception: the error of a row in its forward, such as `InvalidLogits`.

    Cost: the tokens from the one before the first on are fed, but for the last; those before it if the row has no keys and values.
    """
    counts, scores = Meter(), list[list[TokenScore]]()
    for start in range(0, len(rows), _MAX_ROWS):
        part = range(start, min(start + _MAX_ROWS, len(rows)))
        limit = max(_MAX_LOGITS // (model.vocab_size * len(part)), _LEAST)
        scored = {
            i: _ScoredRow(rows[i], model, firsts[i], top, counts=counts, limit=limit)
            for i in part
            if firsts[i] < len(rows[i].token_ids)
        }
        run_rows(model, [*scored.values()], counts)
        scores += [
            [scored[i].scores[index] for index in range(firsts[i], len(rows[i].token_ids))] if i in scored else []
            for i in part
        ]
    return scores


def score_texts(model: LanguageModel, prompt: Any, text: Any) -> Any:
    """Return the log-probabilities of the tokens of texts after prompts; see `EngineModel.score`."""
    begun, texts = _rows(model, prompt), _texts(model, text)
    is_one = (
        len(begun) == 1
        and as_given(text) is not None
        and not (as_given(prompt) is None and isinstance(prompt, list | tuple))
    )
    count = max(len(begun), len(texts))
    if {len(begun), len(texts)} - {1, count}:
        raise BatchMismatch(
            f"expected as many texts as prompts, or one of either, got {len(begun)} prompts and {len(texts)} texts"
        )
    if len(begun) == 1 < count and not model.is_recurrent:
        begun = model.prefilled(begun)  # once for all texts
    begun, texts = begun * (count // len(begun)), texts * (count // len(texts))
    rows = [extended(row, given, model.tokenizer) for row, given in zip(begun, texts, strict=True)]
    for row in rows:
        check_length(model, row.token_ids[:-1], "prompt with its text")  # the last token is not fed
    starts = [len(row.token_ids) for row in begun]
    found = score_rows(model, rows, [max(start, 1) for start in starts])
    scores = [
        torch.tensor(
            [math.nan] * (not start and len(row.token_ids) > 0) + [one.logprob for one in ones],
            dtype=torch.float32,
            device="cpu",
        )
        for start, row, ones in zip(starts, rows, found, strict=True)
    ]
    return scores[0] if is_one else scores


def _rows(model: LanguageModel, prompt: Any) -> list[StateRow]:
    """Return the rows of a prompt; the tokenizer's first tokens alone for an empty text."""
    if isinstance(prompt, SequenceState):
        if prompt.model is not model:
            raise ModelMismatch(
                f"expected a state of {model!r}, got one of {prompt.model!r}. Pass its text instead: `str(state)`."
            )
        rows = [row for group in prompt.rows for row in group]
        failed = next((row.error for row in rows if row.error is not None), None)
        if failed is not None:
            raise failed
        return rows
    stream = RandomStream(0)  # never drawn from
    return [prompt_row(prompt_ids(given, model)[0], model, stream) for given in _texts(model, prompt, "prompt")]


def _texts(model: LanguageModel, text: Any, name: str = "text") -> list[Given]:
    """Return one text, or those of a list."""
    one = as_given(text)
    found = [one] if one is not None else [as_given(item) for item in text] if isinstance(text, list | tuple) else []
    known = [checked_given(item, model) for item in found if item is not None]
    if not known or len(known) != len(found):
        raise PromptTypeError(
            f"expected a `{name}` that is a text, `Tokens`, a list of token ids, or a list with one or more of them, "
            f"got {type(text).__name__}. For a state write `model.score(state, text)`."
        )
    return known
