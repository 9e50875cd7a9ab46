"""`models.from_callable`: functions in NumPy and in ONNX Runtime, and those that are none; they write what the model writes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import fsm
from outlines_cont import SequenceState, adapters, continuous, generate, models, policies, samplers
from outlines_cont.errors import IncompleteOutput, InvalidLogits, NotPicklable, OptionError, StateMismatch, UnsupportedModel, UserCodeError
from outlines_cont.models import CallableModel
from tests.examples import examples
from tests.fakes import EOS, VOCAB_SIZE, FakeTokenizer, random_model
from tests.oracle import assert_close, next_logits
from tests.vocabularies import byte_level_bpe

TOKENS = FakeTokenizer()
_RANDOM = np.random.default_rng(5)
EMBEDDING = _RANDOM.normal(size=(VOCAB_SIZE, 8)).astype(np.float32)
HEAD = _RANDOM.normal(size=(8, VOCAB_SIZE)).astype(np.float32)


class Bag:
    """A toy in NumPy: the sum of the embeddings so far, and a linear head."""

    def logits(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = EMBEDDING[token_ids].cumsum(0) @ HEAD
        return logits


def bag_in_onnx() -> bytes:
    """The same as a graph: Gather, CumSum, MatMul over (1, T) ids."""
    constants = [numpy_helper.from_array(array, name) for array, name in ((EMBEDDING, "embedding"), (HEAD, "head"), (np.array(1), "axis"))]
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]),
        helper.make_node("CumSum", ["embedded", "axis"], ["summed"]),
        helper.make_node("MatMul", ["summed", "head"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "T"])
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "T", VOCAB_SIZE])
    graph = helper.make_graph(nodes, "bag", [ids], [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def in_onnx() -> CallableModel:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(bag_in_onnx(), options, providers=["CPUExecutionProvider"])
    return models.from_callable(lambda ids: session.run(None, {"input_ids": ids[None]})[0][0], TOKENS)


def test_a_toy_in_numpy_runs_generators_states_and_samplers() -> None:
    model = models.from_callable(Bag(), TOKENS)
    state = continuous(generate.regex(model, "[a-c]{3}, (yes|no)"))(["the ", "a name: "])
    assert state.finish_reasons == [["constraint"], ["constraint"]]
    assert all(len(value[0]) in (7, 8) for value in state.values)
    forked = continuous(generate.choice(model, ["red", "blue"], sampler=samplers.multinomial(3)))(state.fork(3) + " ", rng=1)
    assert forked.shape[:2] == (2, 3)
    again = continuous(generate.choice(model, ["red", "blue"], sampler=samplers.multinomial(3)))(state.fork(3) + " ", rng=1)
    assert again.values == forked.values


def test_onnx_runtime_writes_what_numpy_writes() -> None:
    prompts = ["the ", "a name: ", "🙂"]
    for make in (
        lambda model: generate.regex(model, "[a-c]{2,9}( yes)?"),
        lambda model: generate.json(model, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}),
        lambda model: generate.choice(model, ["yes", "no"], sampler=samplers.beam_search(2)),
    ):
        numpy_state, onnx_state = (
            continuous(make(model))(prompts, max_tokens=12, rng=2) for model in (models.from_callable(Bag(), TOKENS), in_onnx())
        )
        assert list(numpy_state) == list(onnx_state)
        torch.testing.assert_close(numpy_state.logprobs.nan_to_num(1.0), onnx_state.logprobs.nan_to_num(1.0), rtol=0, atol=1e-3)


def test_logits_are_those_of_the_function() -> None:
    model = models.from_callable(Bag(), TOKENS)
    state = continuous(generate.text(model))("the name", max_tokens=1)
    ids = np.array(state.rows[0][0].token_ids)
    torch.testing.assert_close(torch.from_numpy(Bag().logits(ids)[-1]), state.logits[0, 0], rtol=0, atol=1e-6)


def test_there_are_no_keys_and_values_and_that_is_told() -> None:
    model = models.from_callable(Bag(), TOKENS)
    state = continuous(generate.text(model))("the name", max_tokens=3)
    with pytest.raises(UnsupportedModel, match="a function of token ids"):
        _ = state.kv_cache
    with pytest.raises(UnsupportedModel, match="a function of token ids"):
        SequenceState.from_cache(model, torch.tensor([[1, 2]]), None)  # type: ignore[arg-type]
    found = model.capabilities
    assert tuple(map(bool, (found.crop, found.stack, found.skip, found.branch, found.reuse))) == (True, True, True, False, False)
    assert "no keys and values" in str(found)
    assert not model.prefix_cache.is_on
    assert repr(model).startswith(f"<CallableModel Bag.logits, {VOCAB_SIZE} tokens, torch.float32")


def test_states_are_saved_for_a_model_of_the_same_name(tmp_path: Path) -> None:
    model = models.from_callable(Bag(), TOKENS, name="bag")
    state = continuous(generate.text(model))("the name", max_tokens=3)
    state.save(tmp_path / "state")
    same = SequenceState.load(tmp_path / "state", models.from_callable(Bag(), TOKENS, name="bag"))
    assert list(state) == list(same)
    assert continuous(generate.text(same.model))(same, max_tokens=3).values == continuous(generate.text(model))(state, max_tokens=3).values
    with pytest.raises(StateMismatch):
        SequenceState.load(tmp_path / "state", models.from_callable(Bag(), TOKENS))


def test_a_function_cannot_be_pickled() -> None:
    with pytest.raises(NotPicklable, match=r"models\.from_callable"):
        pickle.dumps(models.from_callable(Bag(), TOKENS))


def test_a_tokenizer_of_transformers_is_widened_to_the_logits() -> None:
    tokenizer = byte_level_bpe()
    model = models.from_callable(lambda ids: np.zeros(tokenizer.get_vocab_size() + 20), tokenizer, eos_token_ids=0)
    assert len(model.tokenizer.token_bytes) == model.vocab_size
    assert torch.float64 == model.dtype
    assert generate.choice(model, ["yes", "no"])("a") in ("yes", "no")
    with pytest.raises(OptionError, match=r"tokens are below 100, the width of the logits, got one with token \d+"):
        models.from_callable(lambda ids: np.zeros(100), tokenizer, eos_token_ids=0)


def test_the_processor_takes_such_a_model_for_its_tokens() -> None:
    processor = adapters.logits_processor("ab", models.from_callable(Bag(), TOKENS)).of(1)
    assert processor(torch.tensor([[0]]), torch.zeros(1, VOCAB_SIZE)).shape == (1, VOCAB_SIZE)  # type: ignore[arg-type]


def fails_later(value: Any) -> Any:
    """A function that does what it should when it is first called, with one id."""

    def logits(token_ids: NDArray[np.int64]) -> Any:
        return np.zeros(VOCAB_SIZE) if len(token_ids) == 1 else value(len(token_ids))

    return logits


def raising(length: int) -> Any:
    raise ConnectionError("gone")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda n: np.zeros((1, n, VOCAB_SIZE)), rf"got one of shape \(1, \d, {VOCAB_SIZE}\).*`array\[0\]`"),
        (lambda n: np.zeros((1, VOCAB_SIZE)), rf"given \d token ids, returns an array of floats of shape \({VOCAB_SIZE},\)"),
        (lambda n: np.zeros(VOCAB_SIZE - 1), rf"got one of shape \({VOCAB_SIZE - 1},\)"),
        (lambda n: 0.5, r"got one of shape \(\)"),
        (lambda n: None, "got NoneType"),
        (lambda n: "text", "got str"),
        (lambda n: [[1.0], [1.0, 2.0]], "got list"),
        (lambda n: np.zeros(VOCAB_SIZE, complex), "got ndarray of type complex128"),
        (raising, r"but it raised ConnectionError\('gone'\), in '.*test_callable_model.py', line \d+"),
    ],
)
def test_what_is_no_array_of_logits_is_an_error_that_says_what_was_expected(value: Any, message: str) -> None:
    model = models.from_callable(fails_later(value), TOKENS)
    with pytest.raises(UserCodeError, match=message):
        generate.text(model)("the name", max_tokens=2)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error_that_says_which(odd: float) -> None:
    values = np.zeros(VOCAB_SIZE)
    values[7] = odd
    model = models.from_callable(fails_later(lambda n: values), TOKENS)
    with pytest.raises(InvalidLogits, match=rf"got {odd} for token 7"):
        generate.text(model)("the name", max_tokens=2)


def test_a_failure_costs_only_its_own_row() -> None:
    def logits(token_ids: NDArray[np.int64]) -> Any:
        if 3 + ord("x") in token_ids:
            raise RuntimeError("no x")
        return Bag().logits(token_ids)

    model = models.from_callable(logits, TOKENS)
    state = continuous(generate.regex(model, "[ab]{4}"))(["the ", "x", "a "])
    assert [None, UserCodeError, None] == [error and type(error) for (error,) in state.errors]
    assert [len(state.values[i][0]) for i in (0, 2)] == [4, 4]


def test_what_is_no_function_is_refused_at_once() -> None:
    for odd in (3, None, "model"):
        with pytest.raises(OptionError, match="a function from token ids to logits"):
            models.from_callable(odd, TOKENS)  # type: ignore[arg-type]
    with pytest.raises(UserCodeError, match="got NoneType"):
        models.from_callable(lambda ids: None, TOKENS)  # type: ignore[arg-type, return-value]
    with pytest.raises(OptionError, match="`context_length`, got 0"):
        models.from_callable(Bag(), TOKENS, context_length=0)
    with pytest.raises(OptionError, match="`eos_token_ids`, got 9999"):
        models.from_callable(Bag(), TOKENS, eos_token_ids=9999)


def test_the_context_ends_a_text() -> None:
    model = models.from_callable(Bag(), TOKENS, context_length=12, eos_token_ids=[EOS, 2])
    assert frozenset({1, 2}) == model.eos_token_ids
    with pytest.raises(IncompleteOutput, match="12 tokens"):
        generate.regex(model, "[ab]{30}")("name")


def test_other_arrays_are_taken() -> None:
    zeros = torch.zeros(VOCAB_SIZE)
    for value in (zeros.to(torch.bfloat16), zeros.double().tolist(), zeros.numpy().astype(np.float16), zeros.int().numpy()):
        model = models.from_callable(lambda ids, value=value: value, TOKENS)
        assert torch.float32 == model.dtype
        assert generate.choice(model, ["yes", "no"])("a") in ("yes", "no")


def test_logits_of_all_positions_save_calls_and_ids_may_be_written_over() -> None:
    calls = {"all": 0, "last": 0}

    def logits(token_ids: NDArray[np.int64], kind: str) -> Any:
        calls[kind] += 1
        found = Bag().logits(token_ids)
        token_ids[:] = 0
        return found if kind == "all" else found[-1]

    written = []
    for kind in calls:
        model = models.from_callable(partial(logits, kind=kind), TOKENS)
        calls[kind] = 0
        with model.meter() as meter:
            # Six forced tokens, whose log-probabilities are wanted, and those that are drawn.
            state = continuous(generate.regex(model, "abcabc[x-z]{2}"))("the name")
        written.append(state)
        if kind == "all":
            assert calls[kind] == meter.forwards
    assert calls["last"] >= calls["all"] + 5
    assert written[0].values == written[1].values
    torch.testing.assert_close(written[0].logprobs.nan_to_num(1.0), written[1].logprobs.nan_to_num(1.0))


_FEW = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])

_PROMPTS = st.lists(st.text("abc the name yes,é🙂\n", min_size=1, max_size=10), min_size=1, max_size=3)
_ITEM = {"enum": ["a", "b", "yes"]}
_UNIQUE = fsm.json_schema({"type": "array", "prefixItems": [_ITEM], "items": _ITEM, "uniqueItems": True, "minItems": 2})


@cache
def _as_function(shape: str) -> CallableModel:
    """The random Llama as a function that returns the logits of all positions, or of the last."""

    def logits(token_ids: NDArray[np.int64]) -> Any:
        lines = next_logits(random_model(), token_ids.tolist()).cpu()
        return lines.numpy() if shape == "all" else lines[-1]

    return models.from_callable(logits, FakeTokenizer(), eos_token_ids=EOS, context_length=256, name="llama")


def _make(kind: int) -> Callable[[Any, Any], Any]:
    return [
        lambda model, sampler: generate.text(model, sampler=sampler),
        lambda model, sampler: generate.regex(model, "[a-c]{2,6}( the)?", sampler=sampler),
        lambda model, sampler: generate.choice(model, ["yes sir", "yes", "no"], sampler=sampler),
        lambda model, sampler: generate.fsm(model, _UNIQUE, sampler=sampler),
        lambda model, sampler: generate.text(model, sampler=sampler, policies=[policies.ban(["a", "é"])]),
        lambda model, sampler: generate.text(model, sampler=sampler, draft="lookup"),
    ][kind]


@settings(parent=_FEW, max_examples=examples(6))
@given(st.sampled_from(["all", "last"]), _PROMPTS, st.integers(0, 5), st.integers(0, 3), st.data())
def test_a_chain_on_a_function_is_that_on_the_model(shape: str, prompts: list[str], kind: int, how: int, data: st.DataObject) -> None:
    sampler = [samplers.greedy(), samplers.multinomial(2), samplers.beam_search(2), samplers.best_of(2)][how]
    steps = data.draw(st.integers(1, 8))
    cut = data.draw(st.integers(0, 9))

    def chain(model: Any) -> list[SequenceState]:
        written = continuous(_make(kind)(model, sampler))(prompts, max_tokens=steps, rng=3)
        forked = written.best(1).fork(2)
        more = continuous(generate.regex(model, "(, |x)[a-z]{1,3}"))(forked + "; ", max_tokens=5)
        short = written[..., :cut]
        return [written, more, short, continuous(generate.text(model))(short.best(1) + "a", max_tokens=3), written]

    for expected, received in zip(chain(random_model()), chain(_as_function(shape)), strict=True):
        assert [[row.token_ids for row in group] for group in expected.rows] == [
            [row.token_ids for row in group] for group in received.rows
        ]
        assert expected.values == received.values
        assert [list(map(type, group)) for group in expected.errors] == [list(map(type, group)) for group in received.errors]
        assert_close(expected.logprobs.nan_to_num(1.0), received.logprobs.nan_to_num(1.0), 1e-4)
        assert_close(expected.weights, received.weights, 1e-4)


@_FEW
@given(_PROMPTS)
def test_a_function_is_given_whole_sequences_of_ids_and_each_once(prompts: list[str]) -> None:
    seen: list[tuple[int, ...]] = []

    def logits(token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        assert token_ids.dtype == np.int64
        seen.append(tuple(token_ids.tolist()))
        return np.sin(np.arange(351) * (1.0 + token_ids.sum() % 7)).astype(np.float32)

    model = models.from_callable(logits, FakeTokenizer())
    assert torch.float32 == model.dtype
    seen.clear()
    state = continuous(generate.text(model))(prompts, max_tokens=4)
    rows = [row.token_ids for group in state.rows for row in group]
    for prompt, row in zip(prompts, rows, strict=True):
        length = len(model.tokenizer.encode(prompt, add_special_tokens=True))
        assert {row[:n] for n in range(length, len(row))} <= set(seen)
    assert all(any(row[: len(ids)] == ids for row in rows) for ids in seen)
    assert len(seen) <= sum(len(row) for row in rows)
