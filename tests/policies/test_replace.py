"""Texts that are put in the place of others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outlines_cont import continuous, generate, policies, samplers
from outlines_cont.errors import OptionError
from tests.bare_loop import ToyModel, law_of, outcome_of
from tests.fakes import EOS, FakeTokenizer, random_model, scripted_model

IDS = {data: token_id for token_id, data in enumerate(FakeTokenizer().token_bytes) if data}


def thinking(ids: list[int]) -> dict[int, float]:
    """Thinks once, and once more after every `but`; then answers."""
    written = FakeTokenizer().text_bytes(ids).split(b">", 1)[-1]
    thought = written.rpartition(b"but")[2]
    for text in (b" hm</think>42", b"hm</think>42"):
        if text.startswith(thought) and (text.startswith(b" ") == (b"but" in written)):
            rest = text[len(thought) :]
            return {IDS[rest[:1]] if rest else EOS: 50.0}
    return {EOS: 50.0}


@pytest.mark.parametrize("at_most", [0, 1, 3])
def test_a_text_is_replaced_so_often_and_then_left(at_most: int) -> None:
    model = scripted_model(thinking)
    policy = policies.replace({"</think>": "\nWait, but"}, at_most=at_most)

    state = continuous(generate.text(model))("x>", policies=[policy], max_tokens=120)

    assert state.values[0][0] == "hm" + "\nWait, but hm" * at_most + "</think>42"
    assert policy.counts(state) == [[at_most]]
    row = state.rows[0][0]
    given = [logprob for logprob, kind in zip(row.logprobs, row.kinds, strict=True) if kind == ord("a")]
    assert len(given) == at_most * len(model.tokenizer.encode_inside("\nWait, but", ()))
    assert not any(given)


def test_every_spelling_is_replaced_and_what_stands_before_it_in_its_token_stays() -> None:
    texts = {0: {b"xab": 0.5, b"x": 0.5}, 1: {b"a": 1.0}, 2: {b"b": 0.5, b"bc": 0.5}, 3: {b"": 1.0}, 4: {b"": 1.0}}
    model = ToyModel(
        [b"x", b"a", b"b", b"bc", b"xab", b"Z", b"Y"], lambda text: texts[min(len(text), 4)] if b"Z" not in text else {b"": 1.0}
    )
    policy = policies.replace({"ab": "ZY"})

    def act(choices: Any) -> str:
        return outcome_of(model, [policy], choices, lambda key: 0.0)

    assert law_of(act) == {"xZY": pytest.approx(1.0)}


def test_what_was_put_there_is_not_replaced_again() -> None:
    policy = policies.replace({"a": "ba"})
    generator = generate.text(random_model(), sampler=samplers.multinomial(5))

    texts = generator("x>", policies=[policy], max_tokens=20, rng=1)
    assert len(texts) == 5
    assert sum("ba" in text for text in texts) > 1
    for text in texts:
        assert "a" not in text.replace("ba", "")


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_what_was_put_there_counts_as_tokens_and_is_not_cut(max_tokens: int) -> None:
    model = scripted_model(lambda ids: {IDS[b"a"]: 50.0})
    size = len(model.tokenizer.encode_inside("xyz", ()))
    (row,) = continuous(generate.text(model))("x>", policies=[policies.replace({"a": "xyz"})], max_tokens=max_tokens).rows[0]
    assert size * math.ceil(max_tokens / size) == len(row.token_ids) - row.piece.start
    assert b"a" * (len(row.token_ids) - row.piece.start) == row.kinds[row.piece.start :]


@pytest.mark.parametrize(
    ("texts", "at_most"),
    [
        *(({}, None), ([], None), ("abc", None), ({"": "a"}, None), ({"a": ""}, None), ({"a": 3}, None)),
        *(({b"a": "b"}, None), ({"a": "\ud800"}, None), ({"a": "b"}, -1), ({"a": "b"}, True), ({"a": "b"}, 1.5)),
    ],
)
def test_what_cannot_be_replaced_is_refused(texts: Any, at_most: Any) -> None:
    with pytest.raises(OptionError, match="expected"):
        policies.replace(texts, at_most=at_most)
