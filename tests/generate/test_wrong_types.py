"""Easy mistakes when a model or a generator is made: each is refused there, with what to write instead."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

import fsm
from outlines_cont import (
    TokenStream,
    generate,
    models,
    samplers,
)
from outlines_cont.errors import UnknownOption
from outlines_cont.models import HuggingFaceModel
from tests.fakes import random_model
from tests.saved_model import save_model


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return models.tiny()


def test_logits_for_fewer_tokens_than_the_tokenizer_has_are_refused(model: HuggingFaceModel) -> None:
    stream = TokenStream(model.tokenizer)
    with pytest.raises(ValueError, match="expected `logits` of all 1283 tokens of the tokenizer, got 5"):
        stream.push_logits(torch.zeros(5), samplers.greedy())
    padded = torch.nn.functional.one_hot(torch.tensor(70), 2000).float()
    assert stream.push_logits(padded, samplers.greedy()).token_ids == (70,)


def test_a_generator_shows_how_it_was_made(model: HuggingFaceModel) -> None:
    hot = samplers.multinomial(2, top_k=3)
    for generator, shown in (
        (generate.text(model), ", sampler=greedy())"),
        (generate.regex(model, "[a-z]+", sampler=hot), ", '[a-z]+', sampler=multinomial(2, top_k=3))"),
        (generate.choice(model, ["a", "b"]), ", ['a', 'b'], sampler=greedy())"),
        (generate.json(model, Order), f", {__name__}.Order, sampler=greedy())"),
        (generate.json(model, {"type": "integer"}), ", {'type': 'integer'}, sampler=greedy())"),
        (generate.format(model, int), ", builtins.int, sampler=greedy())"),
        (generate.cfg(model, 'start: "a"+'), """, 'start: "a"+', sampler=greedy())"""),
        (generate.fsm(model, fsm.regex("a")), ", regex('a'), sampler=greedy())"),
    ):
        kind = next(iter(json.loads(generator.source)))
        assert f"generate.{kind}({model!r}{shown}" == str(generator) == repr(generator)


def test_a_text_stands_for_itself_where_an_expression_is_expected(model: HuggingFaceModel) -> None:
    assert generate.fsm(model, "yes")("Message: ") == "yes"
    assert generate.fsm(model, fsm.choice(["yes"]))("Message: ") == "yes"


def test_loading_the_bundled_model_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    models.tiny()
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("saved"))


class Order(BaseModel):
    name: str


def test_an_option_of_loading_that_there_is_reaches_transformers(saved: Path) -> None:
    network: Any = models.transformers(
        saved, attn_implementation="eager", rms_norm_eps=0.5, local_files_only=True
    ).hugging_face
    assert (network.config._attn_implementation, network.config.rms_norm_eps) == ("eager", 0.5)


def test_a_function_that_knows_its_options_keeps_its_signature() -> None:
    assert "top_k" in inspect.signature(samplers.multinomial).parameters
    assert "registry" not in inspect.signature(generate.json).parameters
    assert samplers.multinomial.__name__ == "multinomial"
    of_best, of_multinomial = (inspect.signature(made).parameters for made in (samplers.best_of, samplers.multinomial))
    assert [*of_best] == [*of_multinomial]
    assert (of_best["n"].default, of_multinomial["n"].default) == (inspect.Parameter.empty, 1)
    with pytest.raises(TypeError, match="'n'"):
        samplers.best_of()  # type: ignore[call-arg, unused-ignore]
    with pytest.raises(UnknownOption, match="options of `best_of` .* Did you mean 'top_k'"):
        samplers.best_of(2, topk=3)  # type: ignore[call-arg, unused-ignore]


def test_the_prefix_cache_of_a_model_is_turned_off_by_its_bytes() -> None:
    model = random_model()
    write = generate.text(model)
    prompt = "word " * 40
    model.prefix_cache.max_bytes = 1 << 20
    text = write(prompt, max_tokens=2)
    assert model.prefix_cache.entries
    model.prefix_cache.max_bytes = 0
    assert (model.prefix_cache.entries, model.prefix_cache.nbytes, model.prefix_cache.is_on) == (0, 0, False)
    assert text == write(prompt, max_tokens=2)
    assert model.prefix_cache.entries == 0
    model.prefix_cache.max_bytes = 1 << 20
    write(prompt, max_tokens=2)
    assert model.prefix_cache.entries
