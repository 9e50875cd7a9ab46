"""What code of users raises in a step is the error of its row, and of nobody else; Ctrl-C is Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field

from outlines_cont import continuous, generate, samplers
from outlines_cont.engine.engine import engine_of
from outlines_cont.errors import UserCodeError
from tests.fakes import random_model


def _leaves(value: str) -> str:
    sys.exit(3)


def _interrupts(value: str) -> str:
    raise KeyboardInterrupt


def _is_interrupted(value: str) -> str:
    signal.raise_signal(signal.SIGINT)
    return value


def _record(validate: Any) -> Any:
    class Record(BaseModel):
        name: Annotated[str, Field(pattern="^[ab]{1,2}$"), AfterValidator(validate)]

    return Record


def _writer(validate: Any, **options: Any) -> Any:
    return generate.json(random_model(), _record(validate), **options)


@pytest.mark.parametrize("validate", [_leaves, _interrupts])
@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.beam_search(2)])
def test_a_validator_that_leaves_fails_its_row_alone(validate: Any, sampler: Any) -> None:
    other = generate.text(random_model()).stream("the name", max_tokens=20)
    written = next(other)
    state = continuous(_writer(validate, sampler=sampler))(["a", "no"], max_tokens=40)
    for group in state.errors:
        assert all(isinstance(error, UserCodeError) for error in group if error is not None)
        assert any(group)
        assert "test_user_code.py" in str(group[0])
    assert written + "".join(other) == generate.text(random_model())("the name", max_tokens=20)


@pytest.mark.parametrize("validate", [_leaves, _interrupts])
def test_a_validator_in_another_thread_does_not_end_this_call(validate: Any) -> None:
    errors: list[Any] = []
    thread = threading.Thread(
        target=lambda: errors.append(continuous(_writer(validate))("a", max_tokens=40).errors[0][0]), daemon=True
    )
    wanted = generate.text(random_model())("the name", max_tokens=60)
    thread.start()
    assert wanted == generate.text(random_model())("the name", max_tokens=60)
    thread.join(60)
    assert isinstance(errors[0], UserCodeError)


def test_ctrl_c_in_a_validator_ends_the_call_and_no_other() -> None:
    other = generate.text(random_model()).stream("the name", max_tokens=20)
    written = next(other)
    with pytest.raises(KeyboardInterrupt):
        _writer(_is_interrupted)("a", max_tokens=40)
    assert written + "".join(other) == generate.text(random_model())("the name", max_tokens=20)
    assert engine_of(random_model()).num_running == 0


def test_a_parser_that_leaves_fails_its_row_alone() -> None:
    import dataclasses

    def parse(text: str) -> Any:
        return sys.exit(1) if text == "yes" else text

    write = generate.choice(random_model(), ["yes", "no"], sampler=samplers.multinomial(12))
    state = continuous(dataclasses.replace(write, parse=parse))("a", rng=0)
    for text, value, error in zip(state, state.values[0], state.errors[0], strict=True):
        assert (value, type(error)) == (("no", type(None)) if text.endswith("no") else (None, UserCodeError))
    assert {"ano", "ayes"} == set(state)
