"""Masks: sets of tokens against Python's sets, masks that are made while a forward runs, and what is no mask."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fsm
from fsm import BudgetExceeded
from outlines_cont import BatchedExecutor, Engine, Policy, RowView, TokenSet, continuous, control, engine_of, generate, samplers
from outlines_cont.control import Branch
from outlines_cont.engine.drawing.masking import overlap_mask_computation
from outlines_cont.engine.job import Job
from outlines_cont.errors import OptionError, SampleMismatch, ScriptError, UnsupportedBranch
from outlines_cont.models import HuggingFaceModel, Meter, from_transformers
from outlines_cont.policies.branch import LazyTokenSet
from outlines_cont.policies.compose import compose
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.examples import first
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_model, random_network
from tests.rows import row_of

_SIZE = 150
_IDS = st.sets(st.integers(0, _SIZE - 1))


def _listed(tokens: TokenSet) -> set[int]:
    return {token_id for token_id in range(_SIZE) if token_id in tokens}


def test_all_and_none_are_what_they_say() -> None:
    assert 10**9 in TokenSet.all
    assert -1 not in TokenSet.all
    assert 0 not in TokenSet.none
    assert (TokenSet.all & TokenSet.none) == TokenSet.none
    assert not TokenSet.none
    assert repr(TokenSet.of([40, 3])) == "TokenSet.of([3, 40])"
    assert repr(~TokenSet.of([3])) == "~TokenSet.of([3])"
    assert repr(TokenSet.all) == "TokenSet.all"


def test_a_set_does_not_change_with_the_bitmask_it_came_from_being_locked() -> None:
    tokens = TokenSet.of_bitmask(np.array([5], dtype=np.int32))
    with pytest.raises(ValueError, match="read-only"):
        tokens.words[0] = 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backtrack": -1}, "`backtrack` is a number of tokens, 0 or more, got -1"),
        ({"ff_tokens": [[1], [2]]}, "at most one sequence in `ff_tokens` without a `sample_mask`, got 2. Give the mask"),
        ({"sample_mask": TokenSet.all, "ff_tokens": [[]]}, "is empty"),
    ],
)
def test_a_branch_that_means_nothing_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Branch(**arguments)  # type: ignore[arg-type]


class _Says(Policy[int]):
    """Returns the same branches at every token."""

    def __init__(self, *branches: Branch) -> None:
        self._branches = [*branches]

    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return self._branches


@given(st.lists(_IDS, min_size=1, max_size=4), st.integers(0, 4))
def test_a_token_is_drawn_under_the_masks_of_all_policies_and_none_may_fork(masks: list[set[int]], place: int) -> None:
    row: Any = SimpleNamespace(token_ids=[1])
    policies = [_Says(Branch(sample_mask=TokenSet.of(ids))) for ids in masks]

    (branch,), decider = compose([(policy, policy.initial(row)) for policy in policies], row)

    assert _listed(branch.sample_mask or TokenSet.none) == set.intersection(*masks)
    assert decider == 0
    policies.insert(place, _Says(branch, branch))
    with pytest.raises(UnsupportedBranch, match="one branch or none"):
        compose([(policy, policy.initial(row)) for policy in policies], row)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["name", "age", "tags"],
}  # fmt: skip
PATTERNS = ["[a-z]{3,9}-[0-9]{2,4}", "(ab|cd|[0-9]x){2,6}!", ".{3,12}\\."]


def fresh_model() -> HuggingFaceModel:
    """A model with no masks yet."""
    return from_transformers(random_network("llama"), FakeTokenizer())


def test_a_mask_is_made_while_the_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_model()
    prompt = continuous(generate.text(model))("the name is ", max_tokens=1)  # the model is probed by then
    is_feeding, is_made = threading.Event(), threading.Event()
    seen: list[tuple[bool, bool]] = []
    forward, bitmask = model.forward, fsm.TokenFSM.bitmask

    def slow_forward(*arguments: Any) -> torch.Tensor:
        is_feeding.set()
        was_made = is_made.wait(5)
        is_feeding.clear()
        seen.append((threading.current_thread() is threading.main_thread(), was_made))
        return forward(*arguments)

    def slow_bitmask(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if token_fsm.is_late(state):
            assert is_feeding.wait(5), "the forward waits for the mask"
        words = bitmask(token_fsm, state)
        is_made.set()
        return words

    monkeypatch.setattr(model, "forward", slow_forward)
    monkeypatch.setattr(fsm.TokenFSM, "bitmask", slow_bitmask)
    state = continuous(generate.regex(model, "[a-m]{2}[n-z]{2}"))(prompt, rng=1, max_tokens=1)
    assert seen == [(True, True)]
    assert state.errors == [[None]]


@pytest.mark.parametrize("seed", first(2, range(3)))
def test_tokens_are_those_of_masks_that_are_made_at_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def write(model: HuggingFaceModel) -> list[Any]:
        schema = continuous(generate.json(model, SCHEMA))(["one ", "the two", "and"], rng=seed, max_tokens=40)
        pattern = continuous(generate.regex(model, PATTERNS[seed % 3]))(["x", "yes no"], rng=seed, stop_at="0")
        return [schema.token_ids.tolist(), schema.weights.tolist(), pattern.token_ids.tolist(), pattern.finish_reasons]

    made_late: list[int] = []
    settle = LazyTokenSet.words.fget
    assert settle is not None

    def counted(mask: LazyTokenSet) -> Any:
        made_late.append(id(mask))
        return settle(mask)

    monkeypatch.setattr(LazyTokenSet, "words", property(counted))
    late = write(fresh_model())
    assert made_late
    monkeypatch.setattr(fsm.TokenFSM, "is_late", lambda token_fsm, state: False)
    assert late == write(fresh_model())


def test_an_error_of_a_late_mask_is_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = continuous(generate.regex(fresh_model(), "[a-z]{6}"))("the name ", rng=4)
    model, bitmask = fresh_model(), fsm.TokenFSM.bitmask

    def refusing(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if "0-9" in repr(token_fsm.expression):
            raise BudgetExceeded("no more states", "max_states", 7)
        return bitmask(token_fsm, state)

    monkeypatch.setattr(fsm.TokenFSM, "bitmask", refusing)
    bad = generate.regex(model, "[0-9]{6}")
    good = generate.regex(model, "[a-z]{6}")
    failed = continuous(bad)("the name ", rng=4)
    assert isinstance(failed.errors[0][0], BudgetExceeded)
    assert str(continuous(good)("the name ", rng=4)) == str(alone)


def test_is_late_only_where_something_else_than_the_end_may_follow() -> None:
    vocabulary = fsm.Vocabulary([bytes([b]) for b in range(256)] + [None], [256])
    token_fsm = fsm.TokenFSM(fsm.regex("ab*"), vocabulary)
    start = token_fsm.initial_state
    assert token_fsm.is_late(start)
    token_fsm.bitmask(start)
    assert not token_fsm.is_late(start)
    assert not token_fsm.is_late(token_fsm.next_state(start, ord("a")))  # it may end here
    gappy = fsm.Vocabulary([b"a", b"b", None], [2])
    assert not fsm.TokenFSM(fsm.regex("[ac]b"), gappy).is_late(start)
    with pytest.raises(fsm.UnknownState):
        token_fsm.is_late(99)


def test_no_thread_without_need_nor_off_the_cpu() -> None:
    late = LazyTokenSet(lambda: TokenSet.of([1]).words)
    before = threading.active_count()
    with overlap_mask_computation([TokenSet.all, late], torch.device("cuda")):
        assert threading.active_count() == before
    assert not late.is_made
    with overlap_mask_computation([TokenSet.all, late], torch.device("cpu")):
        pass
    assert late.is_made
    with overlap_mask_computation([TokenSet.all, late], torch.device("cpu")):
        assert threading.active_count() == before


def test_masks_behind_a_guess_are_made_beside_the_forward_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the guess is likely right, so that no mask is made for nothing."""
    model = fresh_model()
    wanted = continuous(generate.regex(model, PATTERNS[0]))("x", rng=1)
    made_by: list[bool] = []
    settle = LazyTokenSet.words.fget
    assert settle is not None

    def seen(mask: LazyTokenSet) -> Any:
        if not mask.is_made:
            made_by.append(threading.current_thread() is threading.main_thread())
        return settle(mask)

    class Knows:
        def propose(self, token_ids: list[int]) -> tuple[int, ...]:
            return wanted.rows[0][0].token_ids[len(token_ids) :]

    model = fresh_model()
    engine_of(model)._speculation.clock = lambda: 0.0
    for _ in range(3):  # a plain forward is measured, and guesses are right
        assert generate.regex(model, "ab", force=False)("x", draft="lookup") == "ab"
    monkeypatch.setattr(LazyTokenSet, "words", property(seen))
    with model.meter() as meter:
        assert wanted.value == generate.regex(model, PATTERNS[0])("x", rng=1, draft=Knows())
    assert made_by.count(False) > meter.forwards


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
    engine.run(job)
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


@pytest.mark.parametrize("scores", [[0.0], np.zeros(VOCAB_SIZE), torch.zeros(3), torch.zeros(VOCAB_SIZE, dtype=torch.int64)])
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
