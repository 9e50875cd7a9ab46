"""Every family of images and texts of which a tiny network can be made: what is behind an image is exact, or the model says why not."""

from __future__ import annotations

import io

import pytest

from outlines_cont import SequenceState, continuous, generate, samplers
from tests.image_models import FAMILIES, image_model, picture
from tests.images.oracle import evict_all, worst_error

_EXACT = 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_an_image_is_exact_however_it_is_kept(family: str) -> None:
    model = image_model(family)
    model.prefix_cache.clear()  # of what other tests have seen
    assert model.capabilities.images, model.capabilities.images.why
    assert model.capabilities.fused, model.capabilities.fused.why  # texts, and what is behind an image
    write = continuous(generate.regex(model, "[a-z]{3} [0-9]{2}", force=False, sampler=samplers.multinomial()))
    with model.meter() as meter:
        state = model.see("Read this: <image>\nTotal: ", images=[picture(1)], rng=3)
    assert meter.images == 1
    assert meter.fed_tokens == state.shape[2]
    assert str(state) == "Read this: <image>\nTotal: "
    forks = write(state.fork(3), max_tokens=12)
    pages = write(state.see("And <image>, too: ", picture(2)), max_tokens=12)
    slices = write(SequenceState.stack([state[:-3], "Now: " + state, state[5:] + "so "]), max_tokens=12, rng=1)
    beside = write([state, "A text alone: "], max_tokens=12, rng=1)
    joined = write(state + state, max_tokens=12)
    evict_all(model)
    again = write(state.fork(3), max_tokens=12)
    file = io.BytesIO()
    state.save(file, kv=False)
    file.seek(0)
    loaded = write(SequenceState.load(file, model).fork(3), max_tokens=12)
    for found in (forks, pages, slices, beside, joined, again, loaded):
        assert worst_error(model, found) < _EXACT
    assert forks.generated == again.generated == loaded.generated


def test_a_picture_of_another_size_has_other_ids_where_the_family_has_no_fixed_size() -> None:
    model = image_model("qwen3_vl")
    small, large = (model.see("<image>.", images=[picture(1, size)]) for size in ((16, 16), (32, 40)))
    assert small.shape[2] < large.shape[2]
    write = continuous(generate.text(model))
    both = write(SequenceState.stack([small, large]), max_tokens=4, min_tokens=4)
    assert worst_error(model, both) < _EXACT
