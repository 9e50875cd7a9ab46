"""Numbers of NumPy and PyTorch, as sweeps (`np.arange`) and tables give them, are those of Python; columns are lists of prompts."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch

from outlines_cont import SequenceState, continuous, generate, models, samplers
from outlines_cont.checks import plain
from outlines_cont.errors import OptionError

MODEL = models.tiny()
PROMPT = "Hi, I am Anna, 34 years old."
DRAWING = generate.text(MODEL, sampler=samplers.multinomial(2))


def written(**options: Any) -> SequenceState:
    given: dict[str, Any] = {"max_tokens": 4, "rng": 7}
    return continuous(DRAWING)(PROMPT, **(given | options))


def sampled(**options: Any) -> SequenceState:
    return continuous(generate.text(MODEL, sampler=samplers.multinomial(**options)))(PROMPT, max_tokens=3, rng=5)


STATE = written()
# What takes a number, with one that it takes.
INTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "max_tokens": (lambda n: written(max_tokens=n), 3),
    "min_tokens": (lambda n: written(min_tokens=n), 2),
    "stop_token_ids": (lambda n: written(stop_token_ids=[n]), 60),
    "rng": (lambda n: written(rng=n), 3),
    "seeds": (lambda n: continuous(DRAWING)([PROMPT], max_tokens=3, rng=[n]), 3),
    "samples": (lambda n: sampled(n=n), 2),
    "top_k": (lambda n: sampled(top_k=n), 3),
    "beams": (lambda n: continuous(generate.text(MODEL, sampler=samplers.beam_search(n)))(PROMPT, max_tokens=3), 2),
    "fork": (lambda n: STATE.fork(n), 2),
    "best": (lambda n: STATE.best(n), 1),
    "resample": (lambda n: STATE.resample([0.0, 1.0], n), 3),
    "slice": (lambda n: STATE[:, :, :n], 5),
    "TopK": (samplers.TopK, 3),
    "DRY": (lambda n: samplers.DRY(allowed_length=n, range=n), 3),
}
FLOATS: dict[str, Callable[[Any], Any]] = {
    "temperature": lambda x: sampled(temperature=x),
    "top_p": lambda x: sampled(top_p=x),
    "min_p": lambda x: sampled(min_p=x),
    "repetition_penalty": lambda x: sampled(repetition_penalty=x),
    **{kind.__name__: kind for kind in (samplers.TopP, samplers.MinP, samplers.TopA, samplers.TypicalP, samplers.Temperature)},
    "XTC": lambda x: samplers.XTC(threshold=x, probability=x),
    "Mirostat": lambda x: samplers.Mirostat(tau=x, eta=x),
}


@pytest.mark.parametrize("name", INTS)
def test_ints_of_arrays_are_ints(name: str) -> None:
    act, number = INTS[name]
    kinds = (np.int64, np.uint8, np.array, torch.tensor) if name in ("max_tokens", "rng") else (np.int64, torch.tensor)
    expected = act(number)
    assert all(act(kind(number)) == expected for kind in kinds)


@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_arrays_are_floats(name: str) -> None:
    expected = FLOATS[name](0.5)
    assert all(FLOATS[name](kind(0.5)) == expected for kind in (np.float32, torch.tensor))


@pytest.mark.parametrize("value", [np.bool_(True), np.int64(-1), np.float64(2.0), torch.tensor(True), np.array([3])])
def test_what_is_no_count_is_refused_as_ever(value: Any) -> None:
    with pytest.raises(OptionError, match="max_tokens"):
        written(max_tokens=value)


def test_what_is_saved_has_numbers_of_python(tmp_path: Any) -> None:
    state = written(min_tokens=np.int64(2), rng=np.int64(3))
    state.save(tmp_path / "s")
    assert SequenceState.load(tmp_path / "s", MODEL) == state
    assert all(type(plain(one)) is kind for one, kind in ((np.int8(1), int), (np.float32(1), float), (np.str_("a"), str)))


@pytest.mark.parametrize("column", [np.array, pandas.Series, polars.Series, lambda items: pandas.DataFrame({"a": items})["a"]])
def test_columns_are_lists_of_prompts_and_of_seeds(column: Callable[[list[Any]], Any]) -> None:
    prompts = [PROMPT, "Hello, it is Ben."]
    write = continuous(DRAWING)
    assert write(column(prompts), max_tokens=3, rng=column([4, 5])) == write(prompts, max_tokens=3, rng=[4, 5])


@pytest.mark.parametrize("generator", [np.random.default_rng, random.Random, lambda n: torch.Generator().manual_seed(n)])
def test_a_generator_gives_each_prompt_a_seed_and_advances(generator: Callable[[int], Any]) -> None:
    first, again = generator(3), generator(3)
    one, two = (continuous(DRAWING)([PROMPT] * 2, max_tokens=3, rng=first).seed for _ in range(2))
    assert isinstance(one, tuple)
    assert isinstance(two, tuple)
    assert len({*one, *two}) == 4
    assert continuous(DRAWING)([PROMPT] * 2, max_tokens=3, rng=again).seed == one


@pytest.mark.parametrize("column", [np.array, pandas.Series, pandas.Index, polars.Series, pandas.array])
def test_columns_are_texts_to_add(column: Callable[[list[Any]], Any]) -> None:
    state = continuous(DRAWING)([PROMPT, "Hello, it is Ben."], max_tokens=3, rng=7)
    texts = [" And you?", " Yes."]
    after = state + column(texts)
    assert isinstance(after, SequenceState)
    assert after == state + texts
    assert state.append(column(texts)) == state.append(texts)
    if column is not polars.Series:  # which asks nobody else for the sum
        assert column(texts) + state == texts + state
