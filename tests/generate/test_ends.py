"""`end="free"`: a piece ends where the model leaves its language, with the share of all tokens that leave it, against plain enumeration."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from outlines_cont import continuous, generate, samplers
from outlines_cont.generate import Generator
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import Sampler
from outlines_cont.state.row import GENERATED, StateRow
from tests.fakes import EOS, FakeTokenizer, random_model
from tests.oracle import next_logits

TOKENS = FakeTokenizer().token_bytes
IDS = {data: token_id for token_id, data in enumerate(TOKENS) if data}
WRITTEN = [IDS[data] for data in (b"a", b"b", b"c", b",", b" ", b"ab", b"abc", b"bc", b", ")] + [EOS]
"""The tokens that the model of these tests writes; all others have a probability below 1e-25."""
PROMPT = "x>"


@dataclass(frozen=True)
class Language:
    """A pattern, and one of what its texts begin with."""

    pattern: str
    begins: str

    def accepts(self, text: bytes) -> bool:
        return re.fullmatch(self.pattern, text.decode(errors="replace")) is not None

    def can_begin(self, text: bytes) -> bool:
        return re.fullmatch(self.begins, text.decode(errors="replace")) is not None

    def goes_on(self, text: bytes) -> bool:
        """Whether a token may stay in the language after a text."""
        return any(self.can_begin(text + data) for data in IDS)

    def left(self, text: bytes, token_id: int) -> bytes | None:
        """What a token that is not allowed adds to a text that ends there; None where it is allowed, or masked."""
        data = TOKENS[token_id] or b""
        if token_id == EOS:
            return b"" if self.accepts(text) else None
        if self.can_begin(text + data):
            return None
        sizes = [size for size in range(len(data)) if self.accepts(text + data[:size])]
        return data[: sizes[-1]] if sizes else None


LANGUAGES = [
    Language("[ab,]{1,3}", "[ab,]{0,3}"),
    Language("(ab)+(, a)?", "(ab)*(a|ab, ?|ab, a)?"),
    Language("a?b?", "a?b?"),
    Language("ab(,b)*", "(a|ab(,b)*,?)?"),
    Language("[abc]+", "[abc]*"),
]


BIAS = dict.fromkeys(WRITTEN, 60.0)


def _model() -> HuggingFaceModel:
    return random_model()


@cache
def _logits(ids: tuple[int, ...]) -> torch.Tensor:
    return next_logits(_model(), ids)[-1].double()


def _probs(ids: tuple[int, ...]) -> dict[int, float]:
    """The probabilities of the tokens that are written."""
    return dict(zip(WRITTEN, _logits(ids)[WRITTEN].softmax(0).tolist(), strict=True))


def _before() -> tuple[int, ...]:
    return tuple(_model().tokenizer.encode(PROMPT, add_special_tokens=True))


def _fits(ids: tuple[int, ...], end: bytes, room: int) -> bool:
    """Return whether the end of a text may be spelled anew; a row that draws has room for one byte."""
    return len(end) <= 1 or len(ids) + len(FakeTokenizer().encode_inside(end.decode(), _before() + ids)) <= room


def _law(language: Language, max_tokens: int) -> dict[str, float]:
    """The probability of each text: that of all sequences of tokens that stay in the language, and of the tokens that leave it then.

    What is missing to 1 was cut.
    """
    law: dict[str, float] = Counter()

    def follow(text: bytes, ids: tuple[int, ...], chance: float) -> None:
        probs = _probs(_before() + ids)
        left = {token_id: language.left(text, token_id) for token_id in probs}
        inside = [i for i in probs if i != EOS and language.can_begin(text + (TOKENS[i] or b""))]
        total = sum(prob for i, prob in probs.items() if i in inside or left[i] is not None)
        if not language.goes_on(text):
            law[text.decode()] += chance
            return
        if len(ids) == max_tokens:
            return
        for token_id, prob in probs.items():
            end = left[token_id]
            if token_id in inside:
                follow(text + (TOKENS[token_id] or b""), (*ids, token_id), chance * prob / total)
            elif end is not None and _fits(ids, end, max_tokens):
                law[(text + end).decode()] += chance * prob / total

    follow(b"", (), 1.0)
    return law


def _own_logprob(language: Language, row: StateRow) -> float:
    """The log-probability, by the model alone, of the tokens of a piece, and of all tokens that leave where it ends."""
    assert row.piece is not None
    drawn, text, total = _drawn(row), b"", 0.0
    ids = tuple(row.token_ids[: row.piece.start])
    for token_id in drawn:
        total += float(_logits(ids).log_softmax(0)[token_id])
        text, ids = text + (TOKENS[token_id] or b""), (*ids, token_id)
    if not language.goes_on(text):
        return total
    rest = row.value.encode()[len(text) :]
    leaving = [i for i, data in enumerate(TOKENS) if (data or i == EOS) and language.left(text, i) == rest]
    return total + float(_logits(ids).log_softmax(0)[leaving].logsumexp(0))


def _generator(language: Language, sampler: Sampler, **options: Any) -> Generator:
    return generate.regex(_model(), language.pattern, sampler=sampler, end="free", force=False, **options)


def _drawn(row: StateRow) -> tuple[int, ...]:
    """The tokens of a piece that were drawn, without what is spelled anew at its end."""
    assert row.piece is not None
    start = row.piece.start
    return tuple(i for i, kind in zip(row.token_ids[start:], row.kinds[start:], strict=True) if kind == GENERATED[0])


each_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.pattern)


@each_language
@pytest.mark.parametrize("num_draws", [1_000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_draws_have_the_shares_of_enumeration(language: Language, num_draws: int) -> None:
    law = _law(language, 3)
    write = continuous(_generator(language, samplers.multinomial(1_000, logit_bias=BIAS)))
    counts: Counter[str] = Counter()
    for seed in range(num_draws // 1_000):
        (rows,) = write(PROMPT, max_tokens=3, rng=seed).rows
        counts.update(row.value for row in rows if row.finish_reason != "length")
    assert set(counts) <= set(law)
    common = [text for text, chance in law.items() if num_draws * chance >= 5]
    expected = [num_draws * law[text] for text in common]
    found = [float(counts[text]) for text in common]
    rest = num_draws - sum(expected), num_draws - sum(found)
    if rest[0] >= 5:
        expected, found = [*expected, rest[0]], [*found, rest[1]]
    degrees = len(expected) - 1
    assert degrees >= 2
    statistic = sum((a - b) ** 2 / a for a, b in zip(expected, found, strict=True))
    assert statistic < degrees + 4.5 * math.sqrt(2 * degrees) + 8  # above the quantile of one in ten thousand


@each_language
def test_weights_are_the_models_own_probabilities(language: Language) -> None:
    sampler = samplers.multinomial(200, logit_bias=BIAS)
    state = continuous(_generator(language, sampler))(PROMPT, max_tokens=3, rng=1)
    rows = [row for row in state.rows[0] if row.finish_reason != "length"]
    assert len(rows) > 20
    for row in rows:
        assert _own_logprob(language, row) == pytest.approx(row.weight, abs=1e-6)
        assert row.weight == row.score
    is_cut = [len(_drawn(row)) < len(row.token_ids[row.piece.start :]) for row in rows if row.piece is not None]
    assert any(is_cut) is (language is not LANGUAGES[4])


@each_language
@pytest.mark.parametrize("prompt", [PROMPT, "the name:", "1"])
def test_greedy_ends_where_the_most_probable_token_leaves(language: Language, prompt: str) -> None:
    text, ids = b"", tuple(_model().tokenizer.encode(prompt, add_special_tokens=True))
    for _ in range(6):
        probs = _probs(ids)
        if not language.goes_on(text):
            break
        inside = [i for i in probs if i != EOS and language.can_begin(text + (TOKENS[i] or b""))]
        best = max((i for i in probs if i in inside or language.left(text, i) is not None), key=probs.__getitem__)
        if best not in inside:
            text += language.left(text, best) or b""
            break
        text, ids = text + (TOKENS[best] or b""), (*ids, best)
    state = continuous(_generator(language, samplers.greedy(logit_bias=BIAS)))(prompt, max_tokens=6)
    assert state.generated == text.decode()


@pytest.mark.parametrize("language", LANGUAGES[:4], ids=lambda language: language.pattern)
def test_beams_rank_by_the_share_of_the_end(language: Language) -> None:
    """With more beams than hypotheses a search is exhaustive: it finds all texts, each by its most probable tokens."""
    state = continuous(_generator(language, samplers.beam_search(700)))(PROMPT, max_tokens=3)
    rows = [row for row in state.rows[0] if row.error is None and row.finish_reason != "length"]
    best: dict[str, float] = {}

    def follow(text: bytes, ids: tuple[int, ...], total: float) -> None:
        logs = _logits(_before() + ids).log_softmax(0)
        if not language.goes_on(text):
            best[text.decode()] = max(best.get(text.decode(), -math.inf), total)
        elif len(ids) < 3:
            ends: dict[bytes, list[int]] = {}
            for token_id, data in enumerate(TOKENS):
                if data and language.can_begin(text + data):
                    follow(text + data, (*ids, token_id), total + float(logs[token_id]))
                elif (data or token_id == EOS) and (end := language.left(text, token_id)) is not None:
                    ends.setdefault(text + end, []).append(token_id)
            for end, leaving in ends.items():
                if not _fits(ids, end[len(text) :], 3):
                    continue
                log = total + float(logs[leaving].logsumexp(0))
                best[end.decode()] = max(best.get(end.decode(), -math.inf), log)

    follow(b"", (), 0.0)
    assert len(rows) == len(best) >= 2
    assert {row.value: row.score for row in rows} == pytest.approx(best, abs=1e-6)
    assert [row.value for row in rows] == sorted(best, key=best.__getitem__, reverse=True)
