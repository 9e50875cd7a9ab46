"""What is no mask, or a mask of another vocabulary, and a state with several rows where one is wanted: told, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outlines_cont import BatchedExecutor, TokenSet, continuous, control, generate, samplers
from outlines_cont.control import Branch
from outlines_cont.engine.engine import Engine
from outlines_cont.engine.job import Job
from outlines_cont.errors import OptionError, SampleMismatch, ScriptError
from outlines_cont.meter import Meter
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import VOCAB_SIZE, random_model
from tests.rows import row_of


@pytest.mark.parametrize("size", [1, 31, 32, 33, 351, 352])
def test_the_first_id_beyond_a_vocabulary_is_told(size: int) -> None:
    for beyond in (size, size + 1, size + 31, size + 32, size + 1000):
        assert TokenSet.of([0, beyond]).first_beyond(size) == beyond
        assert TokenSet.of([beyond, beyond + 5]).first_beyond(size) == beyond
    if size % 32 == 31:
        return  # one bit that is set may be an id
    inside = TokenSet.of(range(size))
    full = TokenSet.of_bitmask(np.full(-(-size // 32), -1, dtype=np.int32))  # what fills up the last word means nothing
    for mask in (inside, full, TokenSet.all, TokenSet.none, ~TokenSet.of([3]), full & inside, TokenSet.all & full):
        assert mask.first_beyond(size) is None


@pytest.mark.parametrize("words", [[1], np.zeros(3), np.zeros((2, 2), np.int32), np.zeros(2, np.int64), torch.zeros(2)])
def test_what_is_no_bitmask_is_refused(words: Any) -> None:
    with pytest.raises(TypeError, match=r"packed bits.*TokenSet\.of\(ids\)"):
        TokenSet.of_bitmask(words)


class _Asks(Policy[int]):
    def initial(self, row: RowView) -> int:
        return 0

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.of([65, VOCAB_SIZE + 3]))]

    def advance(self, state: int, token_id: int) -> int:
        return state + 1


def test_an_id_beyond_the_vocabulary_in_the_mask_of_a_policy_fails_its_row() -> None:
    model, counts = random_model(), Meter()
    source = StateRow.of_prompt(model.tokenizer.encode("the"), RandomStream(0))
    job, engine = Job([row_of(source, [_Asks()], model, counts=counts)], counts), Engine(model)
    engine.submit(job)
    for _ in engine.steps(job):
        pass
    assert f"from 0 to {VOCAB_SIZE - 1} in `sample_mask`" in str(job.done[0].error)
    assert f"got {VOCAB_SIZE + 3}" in str(job.done[0].error)


def test_an_id_beyond_the_vocabulary_in_the_mask_of_a_controller_is_told() -> None:
    def controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.of([VOCAB_SIZE]))]

    with pytest.raises(ScriptError, match=f"got {VOCAB_SIZE}"):
        control.run(random_model(), controller, "the")


@pytest.mark.parametrize(
    "mask",
    [[65], np.ones(VOCAB_SIZE, bool), torch.ones(VOCAB_SIZE, dtype=torch.bool), np.zeros(3, np.int32), 65, "a",
     TokenSet.of([65, VOCAB_SIZE])],
)  # fmt: skip
def test_a_wrong_mask_for_a_conversation_is_an_option_error_and_nothing_is_drawn(mask: Any) -> None:
    with BatchedExecutor(random_model(), seed=1) as executor:
        conversation = executor.create("the")
        executor.infer()
        for act in (conversation.sample, conversation.step):
            with pytest.raises(OptionError, match="in `mask`|as `mask`") as failure:
                act(samplers.multinomial(), mask=mask)
            assert failure.value.option == "mask"
        token_id = conversation.sample(samplers.multinomial(), mask=TokenSet.of([65, 66]))
        assert token_id in (65, 66)
        assert conversation.state.rows[0][0].stream.drawn == 1


@pytest.mark.parametrize(
    "scores", [[0.0], np.zeros(VOCAB_SIZE), torch.zeros(3), torch.zeros(VOCAB_SIZE, dtype=torch.int64)]
)
def test_wrong_scores_for_a_conversation_are_an_option_error(scores: Any) -> None:
    with BatchedExecutor(random_model(), seed=1) as executor:
        conversation = executor.create("the")
        executor.infer()
        with pytest.raises(OptionError, match="as `scores`"):
            conversation.sample(scores=scores)


@pytest.mark.parametrize("prompts", [["the", "a"], "the"])
def test_a_program_on_a_state_of_two_rows_says_what_to_do(prompts: Any) -> None:
    async def script() -> None:
        await control.gen(max_tokens=1)

    state = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))(prompts, max_tokens=1, rng=0)
    two = state[:, :1, :] if isinstance(prompts, list) else state
    with pytest.raises((OptionError, SampleMismatch), match=r"state of one row.*state\.take\(\[\(b, s\)\]\)"):
        control.run(random_model(), script, two)
    assert control.run(random_model(), script, two.take([(0, 0)])).texts
