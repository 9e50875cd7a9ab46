"""Caches given to transformers and taken from it, at their borders: rows that are wholly fed, seeds of their own."""

from __future__ import annotations

import pytest
import torch

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import OptionError
from tests.fakes import FAMILIES, random_model, random_network


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_of_rows_that_are_wholly_fed_leaves_the_last_column_to_generate(family: str) -> None:
    model = random_model(family)
    state = continuous(generate.text(model))(["the name of", "red"], max_tokens=3)
    assert bool(state.logits.isfinite().any())  # now all tokens are fed
    lengths = state.attention_mask.sum(-1)
    assert torch.equal(lengths, state.cached)
    ids, mask = state.token_ids.flatten(0, 1), state.attention_mask.flatten(0, 1).long()
    cache = state.kv_cache
    assert cache is not None
    assert cache.get_seq_length() == ids.shape[1] - 1
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 2}
    wanted = random_network(family).generate(ids, **options)  # type: ignore[operator]
    got = model.hugging_face.generate(ids, past_key_values=cache, **options)  # type: ignore[operator]
    assert wanted.tolist() == got.tolist()


def test_rows_taken_from_a_cache_with_seeds_of_their_own_write_what_they_write_alone() -> None:
    model = random_model()
    state = continuous(generate.text(model))(["the name", "a rose"], max_tokens=4)
    cache = state.kv_cache
    assert cache is not None
    ids, mask = state.token_ids.flatten(0, 1), state.attention_mask.flatten(0, 1)
    write = continuous(generate.text(model, sampler=samplers.multinomial(temperature=2.0)))
    both = write(SequenceState.from_cache(model, ids, cache, attention_mask=mask, rng=[5, 6]), max_tokens=6)
    for row, seed in enumerate([5, 6]):
        own = continuous(generate.text(model))(["the name", "a rose"][row], max_tokens=4)
        kept = own.token_ids[0]
        alone = SequenceState.from_cache(model, kept, own.kv_cache, rng=[seed])  # type: ignore[arg-type]
        assert list(write(alone, max_tokens=6)) == [list(both)[row]]
    together = write(SequenceState.from_cache(model, ids, cache, attention_mask=mask, rng=5), max_tokens=6)
    assert next(iter(both)) == next(iter(together))


def test_forks_that_leave_a_stream_at_different_places_draw_differently() -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(temperature=5.0)))
    many = continuous(generate.text(model, sampler=samplers.multinomial(2, temperature=5.0)))
    start = write("the name of the rose", max_tokens=2, rng=3)
    later = write(start, max_tokens=3)
    # The same ids again, but the stream stands three numbers further.
    again = later.tokens[: start.shape[2]]
    assert start.token_ids.tolist() == again.token_ids.tolist()
    first, second = many(start.fork(2), max_tokens=8), many(again.fork(2), max_tokens=8)
    assert set(first).isdisjoint(second)
    assert len({*first}) == 2


def test_the_cache_of_beams_is_refused() -> None:
    model = random_model("llama")
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    alone = model.hugging_face.generate(ids, **options)
    state = SequenceState.from_cache(model, alone.sequences, alone.past_key_values)
    assert torch.allclose(state.logits, state.detach_cache().logits, atol=1e-8)
    beams = model.hugging_face.generate(ids, num_beams=4, num_return_sequences=4, **options)
    with pytest.raises(OptionError, match="After a search with beams the cache is that of the beams"):
        SequenceState.from_cache(model, beams.sequences, beams.past_key_values)
    swapped = SequenceState.from_cache(model, alone.sequences, alone.past_key_values).kv_cache
    with pytest.raises(OptionError, match="row 0 is of other tokens"):
        SequenceState.from_cache(model, alone.sequences.flip(0), swapped)
