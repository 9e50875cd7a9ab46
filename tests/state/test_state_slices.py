"""A state indexed, added to, forked, stacked and continued does what Python does with its texts, and what a fresh run computes."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import BatchMismatch, ModelMismatch, OptionError, SampleMismatch, SlicingError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow, shown_text, written
from outlines_cont.state.sequence_state import best_row
from outlines_cont.state.tokens import prompt_row
from tests.examples import examples
from tests.fakes import DEVICE, random_model
from tests.oracle import assert_close, next_logits
from tests.vocabularies import llama_2_bpe, metaspace_bpe

_ALPHABET = "ab e1 \n\"éß日本🙂👨‍👩‍👧é'<"
_TEXTS = st.text(st.sampled_from(_ALPHABET), max_size=12)
_ENDS = st.one_of(st.none(), st.integers(-14, 14))
_SLICES = st.builds(slice, _ENDS, _ENDS, st.sampled_from([None, None, None, 1, 2, -1, -3]))
_FRONTS = st.builds(slice, st.sampled_from([None, 0]), _ENDS)


@cache
def _with_tokenizer(kind: str) -> HuggingFaceModel:
    """A model over a tokenizer with byte fallback and a prefix space, or over one of bytes."""
    if kind == "bytes":
        return random_model()
    source: Any = {"llama_2": llama_2_bpe, "metaspace": lambda: metaspace_bpe("first")}[kind]()
    tokenizer = Tokenizer(transformers.PreTrainedTokenizerFast(tokenizer_object=source, eos_token="</s>", bos_token="<s>"))
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer.token_bytes),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=1,
        eos_token_id=2,
    )
    return models.from_transformers(transformers.LlamaForCausalLM(config).double(), tokenizer)


@st.composite
def _states(draw: st.DrawFn, kinds: tuple[str, ...] = ("bytes", "llama_2", "metaspace")) -> SequenceState:
    """States of any shape whose rows are texts cut into tokens at any place, special tokens among them."""
    model = _with_tokenizer(draw(st.sampled_from(kinds)))
    batch, samples = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows = tuple(tuple(draw(_rows(model)) for _ in range(samples)) for _ in range(batch))
    return SequenceState(model, rows, 0)


@st.composite
def _rows(draw: st.DrawFn, model: HuggingFaceModel) -> StateRow:
    tokenizer = model.tokenizer
    text = draw(_TEXTS)
    token_ids = tokenizer.encode(text, add_special_tokens=draw(st.booleans()))
    for piece in draw(st.lists(_TEXTS, max_size=2)):
        token_ids += tokenizer.encode_inside(piece, token_ids)
    special = next(i for i, data in enumerate(tokenizer.token_bytes) if data is None)
    for place in draw(st.lists(st.integers(0, 30), max_size=2)):
        token_ids.insert(place % (len(token_ids) + 1), special)
    if draw(st.booleans()) and model is random_model():
        # A token that ends inside a character.
        token_ids.append(next(i for i, data in enumerate(tokenizer.token_bytes) if data == "🙂".encode()[:2]))
    return prompt_row(token_ids, model, RandomStream(0))


def _grid(state: SequenceState) -> list[list[str]]:
    texts = iter(state)
    return [[next(texts) for _ in group] for group in state.rows]


@settings(max_examples=examples(80), deadline=None)
@given(_states(), st.one_of(_SLICES, _FRONTS), _SLICES, _SLICES)
def test_a_slice_has_the_text_that_python_gives(state: SequenceState, ids: slice, batch: slice, samples: slice) -> None:
    wanted = [[text[ids] for text in group[samples]] for group in _grid(state)[batch]]
    assert [text for group in wanted for text in group] == list(state[batch, samples, ids])
    assert [text[ids] for text in state] == list(state[..., ids])
    if state.num_samples == 1:
        assert [group[0][ids] for group in _grid(state)[batch]] == list(state[batch, ids])
    if state.batch_size == 1:
        assert [text[ids] for text in _grid(state)[0][samples]] == list(state[samples, ids])
    if state.batch_size == state.num_samples == 1:
        assert next(iter(state))[ids] == str(state[ids])


@settings(max_examples=examples(40), deadline=None)
@given(_states(), st.integers(-14, 14), st.integers(-4, 4), st.integers(-4, 4))
def test_an_int_keeps_its_axis_and_must_exist(state: SequenceState, at: int, batch: int, sample: int) -> None:
    try:
        wanted = _grid(state)[batch][sample][at]
    except IndexError:
        with pytest.raises(IndexError, match="expected"):
            state[batch, sample, at]
    else:
        assert [wanted] == list(state[batch, sample, at])
        assert state[batch, sample, at].shape[:2] == (1, 1)
    if all(-len(text) <= at < len(text) for text in state):
        assert [text[at] for text in state] == list(state[..., at])


@settings(max_examples=examples(60), deadline=None)
@given(_states(), st.one_of(_SLICES, _FRONTS))
def test_tokens_are_indexed_as_lists(state: SequenceState, ids: slice) -> None:
    cut = state.tokens[..., ids]
    assert [row.token_ids[ids] for row in state._flat] == [row.token_ids for row in cut._flat]


@settings(max_examples=examples(60), deadline=None)
@given(_states(), _states(), _TEXTS, st.one_of(_SLICES, _FRONTS))
def test_sums_have_the_joined_texts(state: SequenceState, other: SequenceState, text: str, ids: slice) -> None:
    assert [row + text for row in state] == list(state + text)
    assert [row + text for row in state] == list(state.append(text, boundary="heal"))
    assert [text + row for row in state] == list(text + state)
    part = state[..., ids]
    assert list(map(operator.add, state, part)) == list(state + part)
    texts = [text * (i % 3) for i in range(len(state))]
    assert list(map(operator.add, state, texts)) == list(state + texts)
    assert list(map(operator.add, texts, state)) == list(texts + state)
    if other.model is state.model and other.shape[:2] == state.shape[:2]:
        assert list(map(operator.add, state, other)) == list(state + other)


@settings(max_examples=examples(30), deadline=None)
@given(_states(("bytes",)), st.integers(0, 16))
def test_a_slice_from_the_beginning_keeps_the_cache_of_all_whole_tokens(state: SequenceState, stop: int) -> None:
    assume(all(row.token_ids for row in state._flat))
    _ = state.logits
    assert state.cached.flatten().tolist() == [len(row.token_ids) for row in state._flat]
    cut = state[..., :stop]
    assert cut == state.crop((..., slice(stop)))
    for row, text, short in zip(state._flat, state, cut._flat, strict=True):
        assert short.token_ids[: short.cached] == row.token_ids[: short.cached]
        if "\ufffd" not in text:
            assert _most_inside(state, row, text, stop) == short.cached
    _check_logits(cut)


def _most_inside(state: SequenceState, row: StateRow, text: str, stop: int) -> int:
    """Try every number of tokens; those that are no part of the text belong to the beginning."""
    token_ids, start = row.token_ids, row.num_start_tokens
    if stop >= len(text):
        return len(token_ids)
    best = 0
    for count in range(1, len(token_ids) + 1):
        begun = shown_text(token_ids[:count], state.tokenizer, start)
        ends_in_text = bool(written(token_ids[:count], state.tokenizer, start)[-1])
        if text[:stop].startswith(begun) and (ends_in_text or not begun):
            best = count
    return best


def _check_logits(state: SequenceState) -> None:
    """Compare with a fresh run, and the tokens that were fed with those that were not cached."""
    missing = sum(max(len(row.token_ids) - row.cached, 0) for row in state._flat if row.logits is None)
    again = sum(row.logits is None and row.cached == len(row.token_ids) > 0 for row in state._flat)
    with state.model.meter() as meter:  # type: ignore[attr-defined]
        logits = state.logits
    assert meter.fed_tokens == missing + again
    for row, got in zip(state._flat, logits.flatten(0, 1), strict=True):
        if row.token_ids:
            wanted = next_logits(state.model, row.token_ids)[-1]  # type: ignore[arg-type]
            assert_close(wanted, got, 1e-6)
        else:
            assert bool(got.isnan().all())


def test_keys_of_a_wrong_form_say_which_is_right() -> None:
    write = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))
    state = write(["the", "a"], max_tokens=2, rng=0)
    with pytest.raises(IndexError, match=r"expected `state\[batch, sample, ids\]`.*2 x 2 rows; got `state\[:3\]`"):
        state[:3]
    with pytest.raises(IndexError, match=r"got `state\[0, 1\]`"):
        state[0, 1]
    with pytest.raises(IndexError, match=r"got `state\[0, 0, 0, 0\]`"):
        state[0, 0, 0, 0]
    with pytest.raises(IndexError, match="got `state\\['a'\\]`"):
        state[0, 0, :]["a"]
    with pytest.raises(IndexError, match=r"expected a batch index from -2 to 1, got 2"):
        state[2, 0, :]
    with pytest.raises(IndexError, match=r"for the row at \[0, 0\], which has"):
        state[..., 99]
    with pytest.raises(IndexError, match="a pair"):
        state.take([0])  # type: ignore[list-item]
    one = state[0, 0, :]
    assert one[:2].shape[:2] == one[0, 0, :2].shape[:2] == one[..., :2].shape[:2] == (1, 1)


def test_cropping_says_why_the_cache_would_be_lost() -> None:
    state = continuous(generate.text(random_model()))(["the name", "a"], max_tokens=2)
    with pytest.raises(SlicingError, match=r"from the beginning for the row at \[0, 0\], of which \d+ tokens are cached.*character 2"):
        state.crop((..., slice(2, 4)))
    with pytest.raises(SlicingError, match="a step of 1"):
        state.crop((..., slice(None, None, 2)))
    assert state.crop((..., slice(4))) == state[..., :4]
    assert state.detach_cache().crop((..., slice(2, 4))) == state[..., 2:4]


def test_sums_and_stacks_of_states_that_do_not_fit_are_refused_with_both_sizes() -> None:
    model = random_model()
    write = continuous(generate.text(model))
    one, two = write("a", max_tokens=1), write(["a", "b"], max_tokens=1)
    with pytest.raises(BatchMismatch, match="got 1 and 2"):
        one + two
    with pytest.raises(SampleMismatch, match="got 1 and 3"):
        one + one.fork(3)
    with pytest.raises(SampleMismatch, match="got 1 and 3"):
        SequenceState.stack([one, one.fork(3)])
    other = continuous(generate.text(random_model("gpt2")))("a", max_tokens=1)
    for join in (lambda: SequenceState.stack([one, other]), lambda: one + other):
        with pytest.raises(ModelMismatch, match="two states of one model"):
            join()
    with pytest.raises(OptionError, match="one or more states"):
        SequenceState.stack([])
    with pytest.raises(OptionError, match="'as_is' or 'heal'"):
        one.append("a", boundary="glue")


def test_the_best_come_first_and_failed_rows_last() -> None:
    model = random_model()
    state = continuous(generate.text(model, sampler=samplers.multinomial(4)))(["the", "name"], max_tokens=4, rng=3)
    ranked = state.sort()
    for before, after in zip(state.weights.tolist(), ranked.weights.tolist(), strict=True):
        assert sorted(before, reverse=True) == after
    assert state.best(2) == ranked[:, :2, :]
    prompts = continuous(generate.text(model))(["the", "x" * 300], max_tokens=1)
    both = SequenceState(model, ((prompts.rows[1][0], prompts.rows[0][0]),), 0)
    assert both.best().errors == [[None]]


def test_rounding_decides_nothing_between_rows_with_the_same_tokens() -> None:
    """The score of the same tokens is that of their forward, whose rounding depends on what else it was fed."""
    state = continuous(generate.text(random_model()))("the", max_tokens=3)
    [[row]] = state.rows

    def shifted(by: float, seed: int) -> StateRow:
        return replace(row, logprobs=(*row.logprobs[:-1], row.logprobs[-1] + by), stream=row.stream.fork(seed))

    rows = (row, shifted(1e-6, 1), shifted(-1e-6, 2), shifted(0.1, 3))
    for order in permutations(rows):
        first = next(same for same in order if same is not rows[3])
        ranked = SequenceState(state.model, (order,), 0).sort().rows[0]
        assert ranked == (rows[3], *[same for same in order if same is not rows[3]])
        assert best_row([same for same in order if same is not rows[3]]) is first
    failed = [replace(row, error=ValueError(str(n)), finish_reason="error") for n in range(3)]
    assert SequenceState(state.model, ((*failed, row),), 0).sort().rows[0] == (row, *failed)


def test_forks_write_different_texts_and_twins_the_same() -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=samplers.multinomial(1)))
    state = write("the", max_tokens=2, rng=1)
    many = continuous(generate.text(model, sampler=samplers.multinomial(6)))
    forks = list(many(state.fork(6), max_tokens=8))
    assert len(set(forks)) == 6
    assert str(write(state, max_tokens=8)) not in forks
    assert forks == list(many(state.fork(6), max_tokens=8))
    twins = list(many(state.fork(6, same=True), max_tokens=8))
    assert set(twins) == {str(write(state, max_tokens=8))}
    # The text of a fork depends neither on its neighbours nor on where it was cut.
    alone = state.fork(6)[0, 4:5, :]
    assert str(write(alone, max_tokens=8)) == forks[4]
    parts = continuous(generate.text(model, sampler=samplers.multinomial(6)))
    first = parts(state.fork(6), max_tokens=3)
    assert forks == list(parts.resume(first, max_tokens=5))


def test_moving_to_the_same_device_changes_nothing() -> None:
    state = continuous(generate.text(random_model()))("the name", max_tokens=1)
    assert state.to(DEVICE).rows[0][0].kv is state.rows[0][0].kv
    with pytest.raises(OptionError, match="a device of this machine"):
        state.to("cuda:99")


def test_logits_are_computed_once() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name", max_tokens=2)
    with model.meter() as meter:
        first = state.logits
        again = state.logits
        continuous(generate.text(model))(state, max_tokens=1)
    assert (meter.forwards, meter.fed_tokens) == (1, 1)
    assert torch.equal(first, again)
