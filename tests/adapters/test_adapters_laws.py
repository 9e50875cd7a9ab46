"""Laws of the adapters for transformers: `model.generate` writes what the engine writes, and what masks by trying every token let pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor

import fsm
from outlines_cont import adapters, continuous, generate
from outlines_cont.errors import AmbiguousPrompt
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import BOS, END_OF_TURN, EOS, VOCAB_SIZE, random_model, random_network

_FEW = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])

_FAMILY = st.sampled_from(("llama", "gpt2"))
_PROMPTS = st.lists(st.text("abc the name yes,é🙂\n", min_size=1, max_size=12), min_size=1, max_size=3)
_OPTIONS = st.lists(st.text("abcyesno é🙂", min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


def _combined(inner: st.SearchStrategy[fsm.Expression]) -> st.SearchStrategy[fsm.Expression]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] + pair[1]),
        pairs.map(lambda pair: pair[0] | pair[1]),
        pairs.map(lambda pair: (pair[0] | "abc") & ~pair[1]),
        inner.map(lambda one: one.repeat(1, 3)),
    )


_EXPRESSIONS = st.recursive(
    st.one_of(
        _OPTIONS.map(fsm.choice),
        st.sampled_from(["[a-c]{2,9}", r"\d+(, \d+)*", "(yes|no)( the [a-z]+)?", "[^a]{1,4}x?"]).map(fsm.regex),
        st.just(fsm.json_schema({"enum": ["red", 1.5, {"name": "é"}]})),
    ),
    _combined,
    max_leaves=4,
).filter(lambda expression: not expression.is_empty())


def _padded(model: HuggingFaceModel, prompts: Sequence[str], pad: int = EOS) -> dict[str, torch.Tensor]:
    """Prompts as the tokenizers of transformers give them, padded on the left."""
    ids = [model.tokenizer.encode(prompt, add_special_tokens=True) for prompt in prompts]
    width = max(map(len, ids))
    rows = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    return {"input_ids": rows, "attention_mask": mask}


def _generated(
    model: HuggingFaceModel, inputs: dict[str, torch.Tensor], *, pad: int = EOS, cut: bool = True, **options: Any
) -> list[list[int]]:
    """What `generate` adds to each row, up to its end."""
    out: Any = model.hugging_face.generate(**inputs, **({"do_sample": False, "pad_token_id": pad} | options))
    rows = out[:, inputs["input_ids"].shape[1] :].tolist()
    return [row[: row.index(EOS)] if cut and EOS in row else row for row in rows]


class BruteForce(LogitsProcessor):
    """Masks by trying every token, for a list of texts. Rows that are none of them any more have nothing left."""

    def __init__(self, model: HuggingFaceModel, options: Sequence[str], start: int) -> None:
        self._tokens = model.tokenizer.token_bytes
        self._options = [option.encode() for option in options]
        self._start = start

    def allowed(self, ids: Sequence[int]) -> list[int]:
        text = b"".join(self._tokens[i] or b"\xff" for i in ids)  # no text has this byte, nor what follows an end
        return [
            i
            for i, data in enumerate(self._tokens)
            if (data and any(option.startswith(text + data) for option in self._options)) or (i == EOS and text in self._options)
        ]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        masked = torch.full_like(scores, -math.inf)
        for row, ids in enumerate(input_ids.tolist()):
            allowed = self.allowed(ids[self._start :])
            masked[row, allowed] = scores[row, allowed]
            if not allowed:  # what has ended, or is given up
                masked[row, EOS] = 0.0
        return masked


@_FEW
@given(_FAMILY, _PROMPTS, _EXPRESSIONS, st.integers(1, 12), st.sampled_from((EOS, END_OF_TURN)))
def test_generate_writes_what_the_engine_writes(
    family: str, prompts: list[str], expression: fsm.Expression, max_tokens: int, pad: int
) -> None:
    model = random_model(family)
    state = continuous(generate.fsm(model, expression, force=False, end="eos"))(prompts, max_tokens=max_tokens)
    wanted = [list(row.token_ids[row.piece.start :]) for group in state.rows for row in group if row.piece]
    inputs = _padded(model, prompts, pad)
    processor = adapters.logits_processor(expression, model).of(inputs)
    assert wanted == _generated(model, inputs, pad=pad, logits_processor=[processor], max_new_tokens=max_tokens)
    fn = adapters.prefix_allowed_tokens_fn(expression, model.tokenizer).of(inputs["input_ids"])
    assert wanted == _generated(model, inputs, pad=pad, prefix_allowed_tokens_fn=fn, max_new_tokens=max_tokens)


@_FEW
@given(_FAMILY, _PROMPTS, _OPTIONS, st.integers(1, 4), st.data())
def test_beams_and_draws_are_those_of_masks_by_brute_force(
    family: str, prompts: list[str], options: list[str], num_beams: int, data: st.DataObject
) -> None:
    model = random_model(family)
    inputs = _padded(model, prompts)
    width = inputs["input_ids"].shape[1]
    kept = data.draw(st.integers(1, num_beams))
    is_drawn = num_beams == 1 and data.draw(st.booleans())
    how = {"num_beams": num_beams, "num_return_sequences": kept, "max_new_tokens": 9, "do_sample": is_drawn}

    def written(**steered: Any) -> list[list[int]]:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return _generated(model, inputs, cut=False, **how, **steered)

    expression = fsm.choice(options)
    wanted = written(logits_processor=[BruteForce(model, options, width)])
    assert wanted == written(logits_processor=[adapters.logits_processor(expression, model).of(inputs)])
    assert wanted == written(prefix_allowed_tokens_fn=adapters.prefix_allowed_tokens_fn(expression, model).of(width))


@settings(max_examples=examples(60), deadline=None)
@given(_OPTIONS, st.data())
def test_rows_in_any_order_get_the_masks_of_brute_force(options: list[str], data: st.DataObject) -> None:
    """The rows have allowed tokens, others, ends and what follows them; they are asked for in any order, twice, and after others."""
    model = random_model()
    brute = BruteForce(model, options, 2)
    processor = adapters.logits_processor(fsm.choice(options), model)
    texts = st.sampled_from([b"", *(option.encode()[:n] for option in options for n in range(len(option.encode()) + 1))])
    spelled = texts.map(lambda text: [3 + byte for byte in text])
    rows = st.tuples(spelled, st.lists(st.sampled_from([EOS, END_OF_TURN, 3 + ord("a"), 270]), max_size=3)).map(
        lambda parts: [*parts[0], *parts[1]]
    )
    for _ in range(data.draw(st.integers(1, 4))):
        several = data.draw(st.lists(rows, min_size=1, max_size=4))
        for row in several:
            ids = torch.tensor([[BOS, 5, *row]])
            scores = torch.randn(1, VOCAB_SIZE, dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
            got = processor.of(2)(ids, scores)  # type: ignore[arg-type]
            allowed = brute.allowed(row) or [EOS]
            assert allowed == (~got[0].isneginf()).nonzero()[:, 0].tolist()
            assert torch.equal(scores[0, allowed], got[0, allowed])


@_FEW
@given(_FAMILY, st.data())
def test_one_object_serves_any_series_of_calls(family: str, data: st.DataObject) -> None:
    """New prompts, the same ones, batches, what was returned before, which goes on, and prompts that begin with it."""
    model = random_model(family)
    more = torch.tensor(model.tokenizer.encode("\n\n; the name"))
    expression = fsm.regex("[a-c ]{3,12}(é|x)")
    processor = adapters.logits_processor(expression, model)
    allowed = adapters.prefix_allowed_tokens_fn(expression, model)
    inputs, begun = _padded(model, data.draw(_PROMPTS)), [[]]
    for _ in range(data.draw(st.integers(2, 4))):
        kind = data.draw(st.sampled_from(["same", "other", "longer"]))
        if kind == "other":
            inputs = _padded(model, data.draw(_PROMPTS))
        elif kind == "longer" and begun[0]:
            rows = [inputs["input_ids"], torch.tensor(begun), more.repeat(len(begun), 1)]
            new = torch.ones(len(begun), len(begun[0]) + len(more), dtype=torch.int64)
            inputs = {"input_ids": torch.cat(rows, dim=1), "attention_mask": torch.cat([inputs["attention_mask"], new], dim=1)}
        start = inputs["input_ids"].shape[1]
        steps = data.draw(st.integers(2, 6))
        is_function = data.draw(st.booleans())
        steered: dict[str, Any] = (
            {"prefix_allowed_tokens_fn": allowed.of(inputs)} if is_function else {"logits_processor": [processor.of(inputs)]}
        )
        fresh = {"logits_processor": [adapters.logits_processor(expression, model).of(inputs)]}
        whole = _generated(model, inputs, cut=False, max_new_tokens=2 * steps, **fresh)
        begun = _generated(model, inputs, cut=False, max_new_tokens=steps, **steered)
        assert [row[:steps] for row in whole] == begun
        if not any(EOS in row for row in begun):
            ids = torch.cat([inputs["input_ids"], torch.tensor(begun)], dim=1)
            mask = torch.cat([inputs["attention_mask"], torch.ones(len(begun), steps, dtype=torch.int64)], dim=1)
            again = {"input_ids": ids, "attention_mask": mask}
            assert [row[steps:] for row in whole] == _generated(model, again, cut=False, max_new_tokens=2 * steps - steps, **steered)
            told = {"logits_processor": [processor.of(start)]}
            assert [row[steps:] for row in whole] == _generated(model, again, cut=False, max_new_tokens=steps, **told)


def _guesses(kind: str) -> dict[str, Any]:
    return {"prompt_lookup_num_tokens": 3} if kind == "lookup" else {"assistant_model": random_network("llama", seed=1)}


@pytest.mark.parametrize("kind", ["lookup", "model"])
@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["abab abab ab", "the name, the name"]), st.sampled_from(["[ab ]{4,20}", "the name|(ab ){1,9}"]))
def test_assisted_generation_is_exact(kind: str, prompt: str, pattern: str) -> None:
    model = random_model()
    inputs = _padded(model, [prompt])
    processor = adapters.logits_processor(pattern, model)
    wanted = _generated(model, inputs, logits_processor=[processor.of(inputs)], max_new_tokens=12)
    guessed: Callable[[Any], list[list[int]]] = lambda used: _generated(  # noqa: E731
        model, inputs, logits_processor=[used], max_new_tokens=12, **_guesses(kind)
    )
    assert wanted == guessed(processor.of(inputs))
    with pytest.raises(AmbiguousPrompt, match=r"processor\.of\(inputs\)"):
        guessed(processor)
