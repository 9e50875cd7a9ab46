"""What a step refuses: branches of policies that contradict each other, forks where none can be, and calls from inside a step."""

from __future__ import annotations

from typing import Any

import pytest

from outlines_cont import Branch, TokenSet, control, generate, samplers
from outlines_cont.errors import ScriptError, UnsupportedBranch
from outlines_cont.policies.policy import RowView
from tests.engine.test_engine_loop import Planned, _free, _write
from tests.fakes import random_model


def _always(**branch: Any) -> Planned:
    return Planned(lambda state, row: [Branch(sample_mask=TokenSet.all, **branch)])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"temperature": 0.5}, {"temperature": 0.7}, "different temperatures for the same sample"),
        ({"ff_tokens": [[5, 6]]}, {"ff_tokens": [[5, 7]]}, "append sequences after the same sample"),
    ],
)
def test_policies_that_want_different_things_of_one_sample(
    first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    model = random_model()
    agree = [_always(**first), _always(**first)] if "temperature" in first else [_always(**first), Planned(_free)]
    good, bad = _write(model, [[3, 4]] * 2, [agree, [_always(**first), _always(**second)]], max_tokens=2)
    assert good.error is None
    assert isinstance(bad.error, UnsupportedBranch)
    assert message in str(bad.error)


def _forks(state: int, row: RowView) -> list[Branch]:
    return [Branch(sample_mask=TokenSet.all)] * 2


@pytest.mark.parametrize(
    ("sampler", "message"),
    [(samplers.greedy(), "Fork with `state.fork"), (samplers.beam_search(2), "a policy cannot fork them")],
)
def test_a_policy_forks_no_row_of_a_call(sampler: Any, message: str) -> None:
    write = generate.text(random_model(), sampler=sampler)
    with pytest.raises(UnsupportedBranch, match=message):
        write("the", max_tokens=3, policies=[Planned(_forks)])


def test_a_policy_that_calls_its_own_model_fails_and_the_engine_goes_on() -> None:
    model = random_model()
    write = generate.text(model)

    def calls(state: int, row: RowView) -> list[Branch]:
        write("a", max_tokens=1)
        return _free(state, row)

    with pytest.raises(UnsupportedBranch, match="Call it after the text is complete"):
        write("the", max_tokens=3, policies=[Planned(calls)])
    assert write("the", max_tokens=3) == write("the", max_tokens=3, policies=[Planned(_free)])


def test_a_program_whose_forks_were_all_cancelled_has_no_state() -> None:
    async def script() -> None:
        await control.gen(regex="[a-z]{40}")

    program = control.start(random_model(), script, "the")
    program.cancel()
    with pytest.raises(ScriptError, match="got only cancelled ones"):
        assert program.result().state


def test_what_leaves_a_controller_as_no_error_is_one_of_the_program() -> None:
    class Exits(control.Controller):
        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            raise SystemExit(3)

    with pytest.raises(ScriptError, match=r"raised SystemExit\(3\)") as caught:
        control.run(random_model(), Exits(), "the").check()
    assert caught.value.result.errors == [caught.value]  # type: ignore[attr-defined]
