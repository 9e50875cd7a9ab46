"""Easy mistakes when a model or a generator is made: each is refused there, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fsm
from outlines_cont import OptionError, generate, models, samplers
from outlines_cont.models import HuggingFaceModel


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return models.tiny()


@pytest.mark.parametrize("sampler", ["greedy", samplers.greedy, 3])
def test_what_is_no_sampler_is_refused_when_the_generator_is_made(model: HuggingFaceModel, sampler: object) -> None:
    with pytest.raises(OptionError, match=r"samplers\.greedy\(\)"):
        generate.text(model, sampler=sampler)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["gpt2", ["a"], None])
def test_what_is_no_model_is_refused_when_the_generator_is_made(wrong: object) -> None:
    with pytest.raises(OptionError, match="expected a model as the first argument"):
        generate.choice(wrong, ["a"])  # type: ignore[arg-type]


def test_a_text_stands_for_itself_where_an_expression_is_expected(model: HuggingFaceModel) -> None:
    assert generate.fsm(model, "yes")("Message: ") == "yes"
    with pytest.raises(OptionError, match="got int"):
        generate.fsm(model, 5)  # type: ignore[arg-type]
    assert generate.fsm(model, fsm.choice(["yes"]))("Message: ") == "yes"


@pytest.mark.parametrize(
    ("source", "message"), [("", "hub id"), (5, "hub id"), ("/nonexistent/folder", "does not exist")]
)
def test_a_source_of_a_model_is_checked_before_anything_is_looked_up(source: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        models.transformers(source)  # type: ignore[arg-type]


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"holds no config\.json"):
        models.transformers(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match="no CUDA device"):
        models.tiny(device="cuda")


def test_loading_the_bundled_model_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    models.tiny()
    assert capfd.readouterr() == ("", "")


TOKEN_FSM = fsm.TokenFSM(fsm.regex("ab+"), fsm.Vocabulary([None, b"a", b"b"], [0]))


@pytest.mark.parametrize("wrong", ["1", None, 1.5, [1], np.array([1, 1])])
def test_what_is_no_state_or_no_token_id_is_refused(wrong: Any) -> None:
    for ask in (TOKEN_FSM.bitmask, TOKEN_FSM.allowed_token_ids, TOKEN_FSM.is_accepting, TOKEN_FSM.forced_text):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask(wrong)
    for ask_both in (TOKEN_FSM.next_state, TOKEN_FSM.explain):
        with pytest.raises(TypeError, match="expected one state, an int, received"):
            ask_both(wrong, 1)
        with pytest.raises(TypeError, match="expected one token id, an int, received"):
            ask_both(1, wrong)


def test_ids_and_states_that_are_not_there_are_named() -> None:
    with pytest.raises(fsm.TokenNotAllowed, match="no id of this vocabulary of 3"):
        TOKEN_FSM.next_state(1, 3)
    with pytest.raises(fsm.UnknownState, match="received 99"):
        TOKEN_FSM.bitmask(99)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fsm.TokenFSM("ab", TOKEN_FSM.vocabulary), TypeError, "expected an expression, such as"),  # type: ignore[arg-type]
        (lambda: fsm.TokenFSM(fsm.regex("a"), [b"a"]), TypeError, r"Write `fsm\.Vocabulary\("),  # type: ignore[arg-type]
        (lambda: fsm.Vocabulary([b"a", None], 1), fsm.VocabularyError, r"Write \[1\]"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").repeat("1"), TypeError, "count of a repetition"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").repeat(0, 1.5), TypeError, "count of a repetition"),  # type: ignore[arg-type]
        (lambda: fsm.regex("a").union(3), TypeError, "expected an expression or a str"),  # type: ignore[arg-type]
    ],
)
def test_what_constraints_are_made_of_is_checked(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
