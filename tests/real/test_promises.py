"""What the pages promise of equal texts, on a real model in the float type of its checkpoint: bfloat16."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from outlines_cont import continuous, engine_of, generate, models, samplers

FOLDER = os.environ.get("OUTLINES_CONT_REAL_MODEL", "")
pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("real"),
    pytest.mark.skipif(
        not Path(FOLDER or "?").is_dir(), reason="OUTLINES_CONT_REAL_MODEL names no folder; `python -m scripts.real_model FOLDER` makes one"
    ),
]

PROMPTS = [
    "The capital of France is",
    "Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14. " * 3,
    "Once upon a time",
    "A list of fruits: apple, banana, cherry, apple, banana, ",
    "def add(a, b):\n",
    "Dear Sir or Madam, I am writing to " + "you about the order of last week, which " * 6,
]


@pytest.fixture(scope="module")
def model() -> Any:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no instructions for bfloat16, so that each text of the deterministic model takes minutes")
    return models.transformers(FOLDER, deterministic=True)


def test_the_default_says_that_texts_are_equal_up_to_rounding(model: Any) -> None:
    plain = models.transformers(FOLDER)
    assert plain.dtype == torch.bfloat16 == model.dtype
    assert "up to rounding: in bfloat16" in str(plain.capabilities)
    assert model.capabilities.exact
    single = models.transformers(FOLDER, dtype="float32")
    write = continuous(generate.text(single))
    alone = [str(write(prompt, max_tokens=10)) for prompt in PROMPTS]
    assert list(write(PROMPTS, max_tokens=10)) == alone == list(write(PROMPTS, max_tokens=10, draft="lookup"))


CHOICES = [
    ("Their new hire is called", [" Sam", " Samir", " Sara", " Anna"], " Sam"),
    ("The capital of France is", [" Paris", " Lyon", " Nice"], " Paris"),
]


def test_choices_in_the_float_type_of_the_checkpoint_are_those_of_float32_up_to_rounding() -> None:
    plain, single = models.transformers(FOLDER), models.transformers(FOLDER, dtype="float32")
    assert plain.dtype == torch.bfloat16
    for prompt, options, best in CHOICES:
        choose = generate.choice(plain, options)
        found, expected = choose.probabilities(prompt), generate.choice(single, options).probabilities(prompt)
        assert sum(found.values()) == pytest.approx(1)
        for option in options:
            assert found[option] == pytest.approx(expected[option], abs=0.05)
        plain.prefix_cache.clear()
        together = continuous(choose)([prompt, PROMPTS[1], prompt]).values
        assert [[best], [best]] == together[::2]
        assert choose(prompt) == best
        again = choose.probabilities([prompt, PROMPTS[1]])[0]
        assert [again[option] for option in options] == pytest.approx([found[option] for option in options], abs=0.03)


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.multinomial(temperature=0.9, top_p=0.95)], ids=["greedy", "drawn"])
def test_a_deterministic_model_writes_the_same_bits_whatever_else_runs(model: Any, sampler: Any) -> None:
    write, drawn, most = continuous(generate.text(model, sampler=sampler)), random.Random(3), 14

    def facts(state: Any) -> list[Any]:
        return [(row.token_ids, row.logprobs) for group in state.rows for row in group]

    wanted = {}
    for prompt in PROMPTS:
        model.prefix_cache.clear()
        (wanted[prompt],) = facts(write(prompt, max_tokens=most, rng=1))
    engine = engine_of(model)
    before = engine.max_batch_tokens
    try:
        for size in (9, 4096):
            engine.max_batch_tokens = size
            prompts = drawn.sample(PROMPTS, drawn.randint(2, len(PROMPTS)))
            expected = [wanted[prompt] for prompt in prompts]
            if size != 64:
                model.prefix_cache.clear()
            cut = write(prompts, max_tokens=drawn.randint(1, 9), rng=1)
            forks = write.resume(cut.fork(2, same=True), max_tokens=most - 1)
            rest = [row[: len(one[0])] for one in expected for row in [one[0]] * 2]
            assert [row.token_ids[: len(ids)] for (row, ids) in zip([r for g in forks.rows for r in g], rest, strict=True)] == rest
            assert facts(write(prompts, max_tokens=most, rng=1, draft="lookup")) == expected
            assert facts(write(prompts, max_tokens=most, rng=1)) == expected
    finally:
        engine.max_batch_tokens = before
