"""Rows that begin with one image see it once, however few tokens it has, also where its keys and values are gone."""

from __future__ import annotations

from typing import Any

import pytest

from outlines_cont import SequenceState, continuous, generate, models, samplers
from tests.image_models import parts, picture
from tests.images.oracle import evict_all, worst_error

_EXACT = 1e-4


def _model(family: str) -> Any:
    return models.from_transformers(*parts(family))


def _gone(model: Any) -> None:
    model.prefix_cache.clear()
    evict_all(model)


@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen2_5_vl"])
@pytest.mark.parametrize("text", ["Read: <image>\nTotal: ", "<image>", "A <image> B <image>"])
def test_forks_of_a_state_without_its_keys_see_its_images_once(family: str, text: str) -> None:
    model = _model(family)
    count = text.count("<image>")
    state = model.see(text, [picture(i) for i in range(count)], rng=1)
    assert state.shape[2] < model.prefix_cache.min_tokens
    write = continuous(generate.text(model, sampler=samplers.multinomial()))
    before = write(state.fork(8), max_tokens=3, min_tokens=3, rng=2)
    _gone(model)
    with model.meter() as meter:
        after = write(state.fork(8), max_tokens=3, min_tokens=3, rng=2)
    assert meter.images == count
    assert after == before
    assert worst_error(model, after) < _EXACT
    _gone(model)
    with model.meter() as meter:
        stacked = write(SequenceState.stack([state + " so", state + " what", "A " + state]), max_tokens=2, min_tokens=2, rng=1)
    assert meter.images == 2 * count  # that of the last is behind other text
    assert worst_error(model, stacked) < _EXACT


def test_questions_one_after_the_other_find_the_image_in_the_prefix_cache() -> None:
    model = _model("llava")
    state = model.see("<image>: ", [picture()])
    write = continuous(generate.text(model))
    _gone(model)
    with model.meter() as meter:
        answers = [write(state + question, max_tokens=2, min_tokens=2) for question in ("so", "what", "no")]
    assert meter.images == 1
    assert max(worst_error(model, answer) for answer in answers) < _EXACT


def test_images_with_equal_ids_are_seen_each() -> None:
    model = _model("llava")
    states = [model.see("<image>: ", [picture(i % 3)]) for i in range(6)]
    write = continuous(generate.text(model))
    _gone(model)
    with model.meter() as meter:
        found = write(SequenceState.stack(states), max_tokens=2, min_tokens=2)
    assert meter.images == 3
    assert worst_error(model, found) < _EXACT


def test_without_reuse_of_prefixes_each_row_sees_its_image() -> None:
    model = models.from_transformers(*parts("llava"), prefix_cache_bytes=0)
    state = model.see("<image>: ", [picture()])
    evict_all(model)
    with model.meter() as meter:
        found = continuous(generate.text(model))(state.fork(3), max_tokens=2, min_tokens=2)
    assert meter.images == 3
    assert worst_error(model, found) < _EXACT
