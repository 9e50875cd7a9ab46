"""`SequenceState`: shapes, padding, adding text, caches of transformers, and what it shows of itself."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
import transformers

from outlines_cont import SequenceState, Span, continuous, generate, kv_bytes, samplers
from outlines_cont.errors import BatchMismatch, ContextLengthError, OptionError, UnsupportedModel
from tests.fakes import FAMILIES, random_model, random_network
from tests.oracle import assert_close


def _grid() -> SequenceState:
    sampler = samplers.multinomial(2, temperature=3.0)
    return continuous(generate.text(random_model(), sampler=sampler))(["the name", "a"], max_tokens=3, rng=5)


def test_tensors_are_left_padded_and_have_the_documented_types() -> None:
    state = _grid()
    batch, samples, width = state.shape
    assert (batch, samples) == (2, 2)
    tensors = {"token_ids": torch.int64, "attention_mask": torch.bool, "logprobs": torch.float32, "sampling_logprobs": torch.float32}
    for name, dtype in tensors.items():
        assert (dtype, (batch, samples, width)) == (getattr(state, name).dtype, tuple(getattr(state, name).shape))
    for name, dtype in {"weights": torch.float32, "cached": torch.int64, "finished": torch.bool}.items():
        assert (dtype, (batch, samples)) == (getattr(state, name).dtype, tuple(getattr(state, name).shape))
    for b, group in enumerate(state.rows):
        for s, row in enumerate(group):
            pad = width - len(row.token_ids)
            assert [0] * pad + list(row.token_ids) == state.token_ids[b, s].tolist()
            assert [False] * pad + [True] * len(row.token_ids) == state.attention_mask[b, s].tolist()
            assert state.logprobs[b, s, : width - 3].isnan().all()
            assert state.sampling_logprobs[b, s, : width - 3].isnan().all()
            assert (state.logprobs[b, s, width - 3 :] < 0).all()
            assert state.logprobs[b, s].nansum().item() == pytest.approx(state.weights[b, s].item(), rel=1e-6)
    assert state.finish_reasons == [["length", "length"]] * 2
    assert not state.finished.any()


def test_changing_a_tensor_changes_no_state() -> None:
    state = _grid()
    before = state.token_ids
    state.token_ids.zero_()
    state.logprobs.fill_(7)
    assert before.equal(state.token_ids)
    assert (state.logprobs.nan_to_num(0.0) <= 0).all()


def test_texts_are_listed_row_by_row() -> None:
    state = _grid()
    texts = list(state)
    assert 4 == len(state) == len(texts)
    assert [text[: len(p)] for text, p in zip(texts, ["the name"] * 2 + ["a"] * 2, strict=True)] == ["the name", "the name", "a", "a"]
    assert f"[1, 0] {texts[2]!r}" in str(state).splitlines()[2]
    assert f"<SequenceState of 2 x 2 rows, at most {state.shape[2]} tokens, {int(state.cached.sum())} cached in all, length>" == repr(state)


def test_texts_go_to_batch_entries_or_rows() -> None:
    state = _grid()
    texts = list(state)
    assert [t + a for t, a in zip(texts, ["x", "x", "y", "y"], strict=True)] == list(state + tuple("xy"))
    assert [t + a for t, a in zip(texts, "abcd", strict=True)] == list(state + tuple("abcd"))
    three = ("a", "b", "c")
    with pytest.raises(BatchMismatch, match=r"2 texts \(one per batch entry\) or 4 texts \(one per row\), got a list of 3"):
        state + three
    with pytest.raises(TypeError, match="got float in the list"):
        state.append(["a", 2.0])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="unsupported operand"):
        state + 1  # type: ignore[operator]


def test_text_beyond_the_context_is_refused() -> None:
    state = continuous(generate.text(random_model()))("the name", max_tokens=1)
    with pytest.raises(ContextLengthError, match="at most 256 tokens") as caught:
        state + "x" * 300
    assert caught.value.limit == 256
    assert caught.value.length > 300


def test_bytes_are_those_of_keys_values_and_logits() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name", max_tokens=4)
    cached = int(state.cached.sum())
    # Two layers, keys and values, two heads of size 8, float64.
    assert cached * 2 * 2 * 2 * 8 * 8 <= state.nbytes <= (cached + 40) * 2 * 2 * 2 * 8 * 8
    joined = continuous(generate.text(model))([state, state], max_tokens=1)
    assert joined.batch_size == 2


def test_a_state_has_its_seed() -> None:
    write = continuous(generate.text(random_model(), sampler=samplers.multinomial()))
    drawn = write(["a", "b"], max_tokens=4)
    assert len(set(drawn.seed)) == 2
    again = write(["a", "b"], max_tokens=4, rng=drawn.seed)
    assert drawn == again
    assert isinstance(write("a", max_tokens=1).seed, int)
    assert write(["a", "b"], max_tokens=1, rng=3).seed == 3
    assert write(["a", "b"], max_tokens=1, rng=[3, 4]).seed == (3, 4)
    assert write([write(["a", "b"], max_tokens=1, rng=[3, 4]), write("c", max_tokens=1, rng=9)], max_tokens=1).seed == (3, 4, 9)
    restarted = write(write("a", max_tokens=1, rng=1), max_tokens=3, rng=2)
    continued = write(write("a", max_tokens=1, rng=1), max_tokens=3)
    assert (restarted.seed, continued.seed) == (2, 1)
    generator = torch.Generator().manual_seed(8)
    assert write("a", max_tokens=1, rng=generator).seed != write("a", max_tokens=1, rng=generator).seed


def test_a_cache_of_transformers_is_taken_in() -> None:
    model = random_model()
    token_ids = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 10]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    out = model.hugging_face.generate(
        token_ids,
        attention_mask=mask,
        max_new_tokens=4,
        do_sample=False,
        return_dict_in_generate=True,
        **{model.cache_argument: transformers.DynamicCache()},
        eos_token_id=None,
    )
    full = torch.cat([mask, torch.ones(2, 4, dtype=torch.int64)], dim=1)
    state = SequenceState.from_cache(model, out.sequences, out[model.cache_argument], attention_mask=full)
    assert state.cached.tolist() == [[8], [6]]
    with model.meter() as meter:
        logits = state.logits
    assert meter.fed_tokens == 2
    assert_close(logits, state.detach_cache().logits, 1e-8)
    with pytest.raises(OptionError, match="one shape"):
        SequenceState.from_cache(model, token_ids, out[model.cache_argument], attention_mask=full)
    with pytest.raises(OptionError, match="does not fit"):
        SequenceState.from_cache(model, out.sequences[:1], out[model.cache_argument])
    with pytest.raises(OptionError, match="from 0 to"):
        SequenceState.from_cache(model, out.sequences + 1000, out[model.cache_argument])
    window = transformers.DynamicCache(config=random_model("mistral").hugging_face.config)
    with pytest.raises(UnsupportedModel, match="DynamicSlidingWindowLayer"):
        SequenceState.from_cache(random_model("mistral"), token_ids, window)


def test_something_else_than_text_is_refused_by_its_type() -> None:
    state = continuous(generate.text(random_model()))("a", max_tokens=1)
    for wrong in (3, None, {"a": 1}):
        with pytest.raises(TypeError, match=f"expected text or a list of texts, got {type(wrong).__name__}"):
            state.append(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unsupported operand"):
        state + 3


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
    got = model.hugging_face.generate(ids, **{model.cache_argument: cache}, **options)  # type: ignore[operator]
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
        "max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    alone = model.hugging_face.generate(ids, **options)
    state = SequenceState.from_cache(model, alone.sequences, alone[model.cache_argument])
    assert torch.allclose(state.logits, state.detach_cache().logits, atol=1e-8)
    beams = model.hugging_face.generate(ids, num_beams=4, num_return_sequences=4, **options)
    with pytest.raises(OptionError, match="After a search with beams the cache is that of the beams"):
        SequenceState.from_cache(model, beams.sequences, beams[model.cache_argument])
    swapped = SequenceState.from_cache(model, alone.sequences, alone[model.cache_argument]).kv_cache
    with pytest.raises(OptionError, match="row 0 is of other tokens"):
        SequenceState.from_cache(model, alone.sequences.flip(0), swapped)


def _chain() -> SequenceState:
    model = random_model()
    state = continuous(generate.choice(model, ["yes <b>&", "no way"]))("the \n<script>")
    return continuous(generate.text(model))(state + " & ", max_tokens=2)


def test_spans_are_all_tokens_with_their_kinds() -> None:
    state = _chain()
    (spans,) = state.spans[0]
    row = state.rows[0][0]
    assert [i for span in spans for i in span.tokens] == list(range(len(row.token_ids)))
    assert "".join(span.text for span in spans) == str(state)
    kinds = [span.kind for span in spans]
    assert (kinds[0], kinds[-1]) == ("prompt", "generated")
    assert {"forced", "appended"} <= set(kinds)
    assert [span.is_piece for span in spans] == [span is spans[-1] for span in spans]
    assert isinstance(spans[0], Span)


def test_bytes_of_several_states_count_what_they_share_once() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name of the rose " * 12, max_tokens=1)
    forks = state.fork(16)
    longer = continuous(generate.text(model))(forks, max_tokens=2)
    assert kv_bytes([state, forks, state[:9]]) == state.nbytes
    assert kv_bytes([state, longer]) <= state.nbytes + longer.nbytes - state.nbytes // 2
    assert kv_bytes([]) == 0


def test_a_state_takes_no_other_attributes() -> None:
    state = continuous(generate.text(random_model()))("a", max_tokens=1)
    with pytest.raises(FrozenInstanceError):
        state.note = "mine"  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        state.rows = ()  # type: ignore[misc]
