"""Filling a gap: by scores, against plain sums of log-probabilities, and by the tokens for fill-in-the-middle of a tokenizer."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fsm
from outlines_cont import generate, models
from outlines_cont.errors import IncompleteOutput, OptionError
from outlines_cont.generation.infilling import FIMTokens, fim_tokens
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.oracle import plain_logs

BEFORE, AFTER = "the name is ", " and it is on"


def _score(model: Any, text: str) -> float:
    logs, ids = plain_logs(model), tuple(model.tokenizer.encode(BEFORE, add_special_tokens=True))
    total = 0.0
    for token_id in model.tokenizer.encode_inside(text + AFTER, ids):
        total += float(logs(ids)[token_id])
        ids = (*ids, token_id)
    return total


def test_listed_texts_are_ranked_by_their_probability_with_the_text_behind() -> None:
    model, options = random_model(), ["red", "green", "the age", "ab", "red"]
    found = generate.infill(model, BEFORE, AFTER, options)
    scores = {text: _score(model, text) for text in options}
    assert sorted(scores, key=lambda text: -scores[text]) == [*found.texts]
    assert sorted(scores.values(), reverse=True) == pytest.approx([*found.scores], abs=1e-4)
    assert sum(map(math.exp, found.log_probabilities)) == pytest.approx(1)
    assert (found.text, found.by_fim, str(found)) == (found.texts[0], False, found.texts[0])


@pytest.mark.parametrize("language", ["[a-c]{1,2}", fsm.regex("(?P<letters>[a-c]{1,2})")])
def test_texts_of_a_language_are_drawn_and_ranked(language: Any) -> None:
    model = random_model()
    found = generate.infill(model, BEFORE, AFTER, language, samples=12, temperature=4.0, rng=1)
    assert len(found.texts) > 3
    assert [_score(model, text) for text in found.texts] == pytest.approx([*found.scores], abs=1e-4)
    assert [*found.scores] == sorted(found.scores, reverse=True)
    assert found == generate.infill(model, BEFORE, AFTER, language, samples=12, temperature=4.0, rng=1)


class _FIMTokenizer(FakeTokenizer):
    def __init__(self) -> None:
        super().__init__()
        count = len(self.token_bytes)
        names = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
        self.special_tokens = {**self.special_tokens, **{count - 5 + i: name for i, name in enumerate(names)}}


def test_a_model_with_tokens_for_the_middle_is_asked_by_them() -> None:
    tokenizer = _FIMTokenizer()
    model = models.from_transformers(random_network("llama"), tokenizer, prefix_cache_bytes=0)
    count = len(tokenizer)
    assert fim_tokens(model) == FIMTokens(prefix=count - 5, suffix=count - 3, middle=count - 4)
    assert fim_tokens(random_model()) is None
    language = "[a-z]{2,3}"
    found = generate.infill(model, BEFORE, AFTER, language)
    encode = tokenizer.encode
    prompt = [0, count - 5, *encode(BEFORE), count - 3, *encode(AFTER), count - 4]
    assert (generate.regex(model, language)(prompt),) == found.texts
    assert found.by_fim
    assert not generate.infill(model, BEFORE, AFTER, ["ab", "the"], use_fim=False).by_fim


def test_what_cannot_be_filled_says_why() -> None:
    model = random_model()
    with pytest.raises(OptionError, match="tokens for fill-in-the-middle"):
        generate.infill(model, BEFORE, AFTER, "a", use_fim=True)
    with pytest.raises(OptionError, match="samples"):
        generate.infill(model, BEFORE, AFTER, "a", samples=0)
    with pytest.raises(OptionError, match="a text as `before`, got None"):
        generate.infill(model, None, AFTER, "a")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a text as `after`, got 3"):
        generate.infill(model, BEFORE, 3, "a")  # type: ignore[arg-type]
    with pytest.raises(fsm.ExpressionError):
        generate.infill(model, BEFORE, AFTER, [])
    with pytest.raises(IncompleteOutput):
        generate.infill(model, BEFORE, AFTER, "a{30}", max_tokens=3, samples=2)
