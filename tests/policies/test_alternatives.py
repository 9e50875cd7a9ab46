"""Ways to go on from where something was refused: the most probable word of those that were followed is kept."""

from __future__ import annotations

from typing import Any

import pytest

from outlines_cont import continuous, generate, policies, samplers
from tests.fakes import random_model

WORDS = ["xjqv", "yk", "qzzj", "wvx", "jyq", "kkw"]
PROMPTS = ["the name", "red or blue", "no"]


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model()


def score(model: Any, prompt: str, word: str) -> float:
    """The log-probability of the first token, and those of the others as the constraint leaves them."""
    row = continuous(generate.choice(model, [word], force=False))(prompt).rows[0][0]
    assert row.piece is not None
    start = row.piece.start
    return row.logprobs[start] + sum(row.sampling_logprobs[start + 1 :])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_of_all_words_that_are_left_the_most_probable_is_kept(model: Any, prompt: str) -> None:
    write = generate.choice(model, WORDS, force=False)
    first = write(prompt)
    left = [word for word in WORDS if word != first]
    best = max(left, key=lambda word: score(model, prompt, word))
    assert write(prompt, policies=[policies.ban(first, alternatives=len(WORDS))]) == best
    one = write(prompt, policies=[policies.ban(first)])
    assert one in left
    two = write(prompt, policies=[policies.ban(first, alternatives=2)])
    assert score(model, prompt, two) >= score(model, prompt, one)


def test_a_row_that_draws_at_random_keeps_what_it_draws(model: Any) -> None:
    write = continuous(generate.text(model, sampler=samplers.multinomial(4, temperature=2.0)))
    banned = ["a", "e", "i"]
    one, many = (write("the name", max_tokens=12, rng=3, policies=[policies.ban(banned, alternatives=n)]) for n in (1, 5))
    assert one == many
    assert int(one.retries.sum()) > 0


def test_a_text_that_is_cut_within_a_comparison_is_resumed_without_what_is_banned(model: Any) -> None:
    write = continuous(generate.text(model))
    for prompt in PROMPTS:
        plain = write(prompt, max_tokens=20).values[0][0]
        given: dict[str, Any] = {"policies": [policies.ban([plain[0], plain[2:4]], alternatives=4)]}
        whole, searched = write(prompt, max_tokens=20, **given), 0
        for length in range(1, 12, 3):
            cut = write(prompt, max_tokens=length, **given)
            resumed = write.resume(cut, max_tokens=20 - length, **given)
            text = resumed.values[0][0]
            assert plain[0] not in text
            assert plain[2:4] not in text
            searched += resumed != whole
        assert searched < 4  # those that were cut elsewhere are what they would have been


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None, "2"])
def test_a_number_of_ways_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match="alternatives"):
        policies.ban("a", alternatives=count)
