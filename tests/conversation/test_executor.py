"""Conversations by hand: prompt, infer, sample, fork, rewind, drop, against recomputation from lists of ids."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import fsm
from outlines_cont import BatchedExecutor, Conversation, SequenceState, Tokens, TokenSet, continuous, generate, kv_bytes, models, samplers
from outlines_cont.engine.drafting.chunk_width import FREE_TOKENS, OTHER_FREE_TOKENS
from outlines_cont.errors import (
    ClosedError,
    ConstraintRequired,
    ConstraintWarning,
    ContextLengthError,
    DeadEnd,
    InferenceRequired,
    InvalidLogits,
    KVBudgetError,
    ModelMismatch,
    OptionError,
    PromptRequired,
    PromptTypeError,
    SampleMismatch,
    SpecialTokenWarning,
    StateFileError,
    StateMismatch,
    UnsupportedModel,
)
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from tests.fakes import BOS, FakeTokenizer, random_model, random_network, recurrent_network, scripted_model
from tests.oracle import greedy_ids, next_logits

TOKENIZER = FakeTokenizer()


def same_logits(conversation: Conversation) -> None:
    """The logits are those of a fresh run on the same ids."""
    model = conversation.state.model
    assert isinstance(model, HuggingFaceModel)
    expected = next_logits(model, conversation.token_ids)
    assert torch.allclose(expected[-1], conversation.logits(), atol=1e-6)
    assert torch.allclose(expected, conversation.logits(slice(None)), atol=1e-6)


@pytest.fixture
def executor() -> Iterator[BatchedExecutor]:
    with BatchedExecutor(random_model(), seed=7) as executor:
        yield executor


# -- prompt and infer --------------------------------------------------------------------------------------------------


def test_a_conversation_is_prompted_any_number_of_times_with_text_and_ids(executor: BatchedExecutor) -> None:
    conversation = executor.create()
    conversation.prompt("the name")
    conversation.prompt(" of")
    conversation.prompt([65, 66])
    conversation.prompt(67)
    conversation.prompt(torch.tensor([68, 69]))
    conversation.prompt(np.array([70]))
    conversation.prompt("")
    conversation.prompt([])

    ids = [*TOKENIZER.encode("the name", add_special_tokens=True), *TOKENIZER.encode(" of"), *range(65, 71)]
    assert ids == conversation.token_ids
    assert len(ids) == len(conversation) == conversation.num_pending == executor.num_pending
    assert TOKENIZER.decode(ids) == conversation.text
    assert len(ids) == executor.infer()
    same_logits(conversation)


def test_sixteen_conversations_of_twenty_tokens_take_twenty_forwards(executor: BatchedExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FREE_TOKENS, "cpu", OTHER_FREE_TOKENS)
    model = random_model()
    conversations = [executor.create("the name " * (1 + i % 3)) for i in range(16)]
    starts = [conversation.token_ids for conversation in conversations]
    with model.meter() as meter:
        for _ in range(20):
            executor.infer()
            executor.step()
    assert (meter.forwards, meter.sampled_tokens) == (20, 320)
    assert meter.recomputed_tokens == 0
    for start, conversation in zip(starts[:3], conversations, strict=False):
        assert [*start, *any_greedy(model, start, 20)] == conversation.token_ids


def any_greedy(model: HuggingFaceModel, start: list[int], count: int) -> list[int]:
    """Greedy decoding over all ids, special ones included."""
    ids = list(start)
    for _ in range(count):
        ids.append(int(next_logits(model, ids)[-1].argmax()))
    return ids[len(start) :]


# -- logits and tokens -------------------------------------------------------------------------------------------------


def test_logits_of_any_position_equal_those_of_a_fresh_run(executor: BatchedExecutor) -> None:
    conversation = executor.create("the name of the rose")
    executor.infer()
    expected = next_logits(random_model(), conversation.token_ids)
    length = len(conversation)

    for at in (0, 3, -1, -2, -length, length - 1):
        assert torch.allclose(expected[at], conversation.logits(at), atol=1e-9)
    for part in (range(2, 5), range(-3, 0), range(4, 1, -1), range(0)):
        assert torch.allclose(expected[list(part)], conversation.logits(part), atol=1e-9)
    assert torch.allclose(expected[::2], conversation.logits(slice(None, None, 2)), atol=1e-9)
    for bad in (length, -length - 1, range(length + 1), 1.0, True, "a"):
        with pytest.raises(IndexError, match="index of one of"):
            conversation.logits(bad)  # type: ignore[arg-type]


def test_logits_are_copies(executor: BatchedExecutor) -> None:
    conversation = executor.create("the name")
    executor.infer()
    fork = conversation.fork()
    token_id = conversation.sample()
    for at in (-1, slice(None)):
        conversation.logits(at).fill_(torch.nan)
    assert token_id == conversation.sample() == fork.sample()


def test_sampling_twice_draws_twice_from_the_same_logits(executor: BatchedExecutor) -> None:
    conversation = executor.create("the", seed=3)
    executor.infer()
    sampler = samplers.multinomial()
    draws = [conversation.sample(sampler) for _ in range(8)]
    again = executor.create("the", seed=3)
    executor.infer()
    assert draws == executor.sample([again], sampler) + [again.sample(sampler) for _ in range(7)]
    assert len(set(draws)) > 1
    assert len(conversation) == 2


def test_step_appends_with_the_log_probability(executor: BatchedExecutor) -> None:
    conversation = executor.create("the")
    executor.infer()
    expected = conversation.logits().log_softmax(-1)
    token_id = conversation.step()
    assert token_id == conversation.token_ids[-1]
    assert conversation.num_pending == 1
    assert float(expected[token_id]) == pytest.approx(float(conversation.state.weights), abs=1e-6)


def test_a_mask_is_obeyed(executor: BatchedExecutor) -> None:
    conversation = executor.create("the")
    executor.infer()
    assert conversation.sample(mask=TokenSet.of([70, 71])) in (70, 71)
    with executor.model.meter() as meter, pytest.raises(DeadEnd, match="Loosen the mask"):
        conversation.sample(mask=TokenSet.none)
    assert meter.sampled_tokens == 0


def test_seeds_make_runs_repeatable() -> None:
    def run(seed: int) -> list[list[int]]:
        with BatchedExecutor(random_model(), seed=seed) as executor:
            conversations = [executor.create("the") for _ in range(3)]
            for _ in range(5):
                executor.infer()
                executor.step(sampler=samplers.multinomial())
            return [conversation.token_ids for conversation in conversations]

    assert run(1) == run(1) != run(2)
    assert run(1)[0] != run(1)[1]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_conversations_draw_what_samples_of_a_call_draw(seed: int) -> None:
    """The conversation with a number is the sample with this number, also beside others, and after some were closed."""
    model = random_model()
    sampler = samplers.multinomial(4, temperature=1.5)
    wanted = continuous(generate.regex(model, "[a-z]{40}", sampler=sampler))("the", rng=seed, max_tokens=6)
    ids = [list(row.token_ids) for row in wanted.rows[0]]
    with BatchedExecutor(model, seed=seed) as executor:
        made = [executor.create("the") for _ in range(4)]
        other = executor.create("the", seed=seed)
        made[1].close()
        for conversation in executor.conversations:
            conversation.constrain(fsm.regex("[a-z]{40}"))
        for _ in range(6):
            executor.infer()
            executor.step(sampler=samplers.multinomial(temperature=1.5))
        assert [made[i].token_ids for i in (0, 2, 3)] == [ids[i] for i in (0, 2, 3)]
        assert other.token_ids == ids[0], "a seed of its own is that of its prompt"


# -- order of calls ----------------------------------------------------------------------------------------------------


def test_a_wrong_order_of_calls_says_what_to_call(executor: BatchedExecutor) -> None:
    conversation = executor.create()
    for call in (conversation.logits, conversation.sample, conversation.step):
        with pytest.raises(PromptRequired, match=r"Call `conversation.prompt\(...\)`"):
            call()
    conversation.prompt("the")
    for call in (conversation.logits, conversation.sample, conversation.step):
        with pytest.raises(InferenceRequired, match=r"with 2 of 2. Call `executor.infer\(\)`") as caught:
            call()
        assert caught.value.pending == 2
    other = executor.create("a")
    executor.infer()
    other.prompt("b")
    with pytest.raises(InferenceRequired):
        executor.step([conversation, other], samplers.multinomial())
    assert TOKENIZER.encode("the", add_special_tokens=True) == conversation.token_ids


def test_use_after_close_is_an_error_and_other_forks_live(executor: BatchedExecutor) -> None:
    conversation = executor.create("the name")
    executor.infer()
    fork = conversation.fork()
    conversation.close()
    conversation.close()
    assert conversation.is_closed
    assert "closed" in repr(conversation)
    calls = (
        lambda: conversation.prompt("a"),
        lambda: conversation.logits(),
        lambda: conversation.sample(),
        lambda: conversation.step(),
        lambda: conversation.fork(),
        lambda: conversation.rewind(0),
        lambda: conversation.mark(),
        lambda: conversation.drop(0, 0),
        lambda: conversation.state,
        lambda: conversation.text,
        lambda: conversation.constrain(None),
        lambda: len(conversation),
        lambda: conversation.save("nowhere"),
        lambda: conversation.__enter__(),
        lambda: executor.sample([conversation]),
    )
    for call in calls:
        with pytest.raises(ClosedError, match=r"executor.create\(\)"):
            call()
    same_logits(fork)
    assert ", 1 conversations>" in repr(executor)
    executor.close()
    executor.close()
    for late in (executor.create, executor.infer, lambda: executor.load("nowhere"), executor.__enter__):
        with pytest.raises(ClosedError):
            late()
    assert fork.is_closed
    assert executor.is_closed


def test_wrong_arguments_change_nothing(executor: BatchedExecutor) -> None:
    conversation = executor.create("the name of")
    executor.infer()
    ids, logits = conversation.token_ids, conversation.logits()
    length = len(ids)
    mark = executor.create("a").mark()
    wrong = (
        lambda: conversation.rewind(-1),
        lambda: conversation.rewind(length + 1),
        lambda: conversation.rewind(1.0),  # type: ignore[arg-type]
        lambda: conversation.rewind(True),
        lambda: conversation.drop(-1, 2),
        lambda: conversation.drop(3, 2),
        lambda: conversation.drop(0, length + 1),
        lambda: conversation.drop(0, 1, mode="divide"),  # type: ignore[arg-type]
        lambda: conversation.rewind_to(mark),
        lambda: conversation.rewind_to(3),  # type: ignore[arg-type]
        lambda: conversation.prompt([1, 10**6]),
        lambda: conversation.prompt([-1]),
        lambda: conversation.sample(samplers.beam_search(2)),  # type: ignore[arg-type]
        lambda: conversation.sample(samplers.multinomial(3)),
        lambda: conversation.step(samplers.best_of(3)),
        lambda: conversation.fork(0),
        lambda: conversation.fork(True),
        lambda: conversation.constrain(3),  # type: ignore[arg-type]
        lambda: BatchedExecutor("gpt2"),  # type: ignore[arg-type]
        lambda: executor.create(seed=-1),
    )
    for call in wrong:
        with pytest.raises(ValueError, match="expected"):
            call()
        with pytest.raises(OptionError):
            call()
    for prompt in (1.5, [1.5], b"abc", None, ["a"]):
        with pytest.raises(PromptTypeError):
            conversation.prompt(prompt)  # type: ignore[arg-type]
    with pytest.raises(ContextLengthError):
        conversation.prompt([65] * 300)
    with pytest.raises(OptionError, match="each conversation once"):
        executor.step([conversation, conversation])
    with pytest.raises(OptionError, match="of this executor"):
        BatchedExecutor(random_model()).sample([conversation])
    assert (ids, 0) == (conversation.token_ids, conversation.num_pending)
    assert torch.equal(logits, conversation.logits())


def test_bad_logits_are_an_error_of_the_one_who_has_them() -> None:
    model = scripted_model(lambda ids: {65: math.nan if 70 in ids else 1.0})
    with BatchedExecutor(model) as executor:
        good, bad = executor.create([66]), executor.create([70])
        executor.infer()
        with pytest.raises(InvalidLogits, match="after 1 tokens"):
            bad.sample()
        assert good.sample() == 65


# -- forks -------------------------------------------------------------------------------------------------------------


def test_forks_cost_nothing_and_do_not_see_each_other() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    small = mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=1, min_view=1))
    with small, BatchedExecutor(model, seed=1) as executor:
        conversation = executor.create([65 + i % 40 for i in range(200)])
        executor.infer()
        before = executor.kv_bytes
        forks = [conversation.fork() for _ in range(16)]
        assert before == executor.kv_bytes
        prefix = model.kv_store.nbytes
        for _ in range(8):
            executor.step(forks, samplers.multinomial())
            executor.infer()
        # Two layers, keys and values, two heads of size 8, float64; a buffer grows with 16 spare columns.
        assert model.kv_store.nbytes <= prefix + 16 * (8 + 16 + 8) * 2 * 2 * 2 * 8 * 8
        assert len({tuple(fork.token_ids) for fork in forks}) == 16
        for fork in forks:
            same_logits(fork)
        same_logits(conversation)


def test_a_fork_in_the_middle_of_a_constraint_is_exact(executor: BatchedExecutor) -> None:
    expression = fsm.regex("[0-9]{4}-[0-9]{2}")
    conversation = executor.create("the date: ")
    conversation.constrain(expression)
    for _ in range(3):
        executor.infer()
        conversation.step(samplers.multinomial())
    fork = conversation.fork()
    for one in (conversation, fork):
        while True:
            executor.infer()
            if one.step(samplers.multinomial()) in random_model().eos_token_ids:
                break
        assert one.is_accepting
        assert expression.accepts(one.text.removeprefix("the date: "))
        executor.infer()
        one.prompt(" anything")  # after its end the constraint is over
    assert conversation.text != fork.text


def test_a_constraint_follows_prompts_rewinds_and_drops(executor: BatchedExecutor) -> None:
    conversation = executor.create("x: ")
    conversation.constrain(fsm.regex("ab+c"))
    with pytest.raises(fsm.TokenNotAllowed):
        conversation.prompt("b")
    conversation.prompt([TOKENIZER._ids[b"a"], TOKENIZER._ids[b"b"]])
    assert not conversation.is_accepting
    mark = conversation.mark()
    conversation.prompt("c")
    assert conversation.is_accepting
    conversation.rewind(1)
    assert not conversation.is_accepting
    conversation.prompt("bbc")
    assert conversation.is_accepting
    conversation.rewind_to(mark)
    conversation.drop(0, 2)  # before the constraint
    conversation.prompt("c")
    assert conversation.is_accepting
    with pytest.raises(fsm.TokenNotAllowed):
        conversation.drop(len(conversation) - 3, len(conversation) - 2)
    assert conversation.text.endswith("abc")
    executor.infer()
    assert conversation.sample() in random_model().eos_token_ids
    conversation.constrain(None)
    conversation.prompt("free")
    assert conversation.is_accepting


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_rewind_before_the_beginning_of_a_constraint_lifts_it_and_says_so(
    executor: BatchedExecutor, tmp_path: Path, is_loaded: bool
) -> None:
    conversation = executor.create("x: ")
    start = len(conversation)
    before = conversation.mark()
    conversation.constrain(fsm.regex("[ab]+"))
    conversation.prompt("ab")
    if is_loaded:
        conversation.save(tmp_path / "saved")
        conversation = executor.load(tmp_path / "saved")
        conversation.fork().rewind(len(conversation) - start)  # to the beginning itself
    else:
        conversation.rewind(len(conversation) - start)
        with pytest.raises(fsm.TokenNotAllowed):
            conversation.prompt("x")
        conversation.prompt("ba")
    length, forks = len(conversation), conversation.fork(2)
    told = rf"from token {start} on was lifted, as the conversation was rewound to token {start - 1}"
    with pytest.warns(ConstraintWarning, match=told) as caught:
        forks[0].rewind(length - start + 1)
    assert [__file__] == [warning.filename for warning in caught]
    with pytest.warns(ConstraintWarning, match=told):
        forks[1].drop(start - 1, length)
    for fork in forks:
        assert (start - 1, TokenSet.all, True) == (len(fork), fork.allowed, fork.is_accepting)
        fork.prompt("anything")
    # A warning that is an error changes nothing, and a mark or `constrain(None)` needs none.
    with warnings.catch_warnings(action="error"):
        with pytest.raises(ConstraintWarning):
            conversation.rewind(length - start + 1)
        assert length == len(conversation)
        lifted = conversation.fork()
        lifted.constrain(None)
        lifted.rewind(length)
        if not is_loaded:
            conversation.rewind_to(before)
            conversation.prompt("free")


def test_a_constraint_whose_beginning_is_dropped_begins_at_the_gap(executor: BatchedExecutor) -> None:
    conversation = executor.create("x: ")
    start = len(conversation)
    conversation.constrain(fsm.regex("[ab]+c"))
    conversation.prompt([TOKENIZER._ids[letter] for letter in (b"a", b"b", b"b")])
    conversation.drop(start - 1, start + 1)
    assert conversation.text == "x:bb"
    with pytest.raises(fsm.TokenNotAllowed):
        conversation.prompt("x")
    conversation.prompt("c")
    assert conversation.is_accepting


def test_a_fulfilled_constraint_without_an_end_says_so() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer(eos=False))
    object.__setattr__(model, "eos_token_ids", frozenset())
    with BatchedExecutor(model) as executor:
        conversation = executor.create("x")
        conversation.constrain(fsm.regex("ab"))
        conversation.prompt("ab")
        executor.infer()
        with pytest.raises(DeadEnd, match="constrain"):
            conversation.sample()


def test_forks_draw_numbers_of_their_own_unless_they_are_the_same(executor: BatchedExecutor) -> None:
    conversation, other = executor.create("the", seed=5), executor.create("the", seed=5)
    executor.infer()

    def draws(one: Conversation) -> list[int]:
        return [one.sample(samplers.multinomial()) for _ in range(6)]

    found = [draws(one) for one in (*conversation.fork(2), *(other.fork() for _ in range(2)))]
    assert found[:2] == found[2:]  # several forks are those that one by one would be
    twins = [draws(one) for one in (*conversation.fork(2, same=True), conversation.fork(same=True), conversation)]
    assert twins == [twins[0]] * 4
    assert len({tuple(line) for line in (*found, *twins)}) == 3


# -- rewinding and dropping --------------------------------------------------------------------------------------------


def test_a_drop_among_several_start_tokens_takes_no_other() -> None:
    class ThreeStarts(FakeTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            return [BOS] * 3 * add_special_tokens + super().encode(text)

    with BatchedExecutor(models.from_transformers(random_network("llama"), ThreeStarts())) as executor:
        conversation = executor.create("the name of")
        ids = conversation.token_ids
        assert ids[:4] == [BOS, BOS, BOS, *TOKENIZER.encode("the")]
        for start, stop in itertools.combinations(range(len(ids)), 2):
            fork = conversation.fork()
            fork.drop(start, stop)
            assert [*ids[:start], *ids[stop:]] == fork.token_ids
            assert TOKENIZER.decode(fork.token_ids) == fork.text == str(fork.state)  # start tokens are not shown
            assert fork.state.generated == ""


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_a_shift_turns_the_keys_as_by_hand(family: str) -> None:
    model = random_model(family)
    with BatchedExecutor(model) as executor:
        conversation = executor.create([65 + i for i in range(20)])
        executor.infer()
        before = conversation._open().row.kv
        assert before is not None
        conversation.drop(3, 8, mode="shift")
        assert conversation.is_approximate
        after = conversation._open().row.kv
        assert after is not None
        assert len(after) == 15
        frequencies = 1.0 / 10000.0 ** (np.arange(0, 8, 2) / 8)
        for (old, old_values), (new, new_values) in zip(before.layers(), after.layers(), strict=True):  # type: ignore[misc]
            assert torch.equal(old[:, :3], new[:, :3])
            assert torch.equal(old_values[:, 8:], new_values[:, 3:])
            pairs = old[:, 8:, :4].cpu().numpy() + 1j * old[:, 8:, 4:].cpu().numpy()
            turned = pairs * np.exp(-5j * frequencies)
            assert np.concatenate([turned.real, turned.imag], -1) == pytest.approx(new[:, 3:].cpu().numpy(), abs=1e-4)
        with model.meter() as meter:
            conversation.fork().sample()
        assert (meter.forwards, meter.fed_tokens) == (1, 1)
        # What attends to nothing that was dropped: the first layer's keys are those of a fresh run.
        fresh = executor.create(conversation.token_ids)
        executor.infer()
        fresh_kv = fresh._open().row.kv
        assert fresh_kv is not None
        assert torch.allclose(fresh_kv.layers()[0][0], after.layers()[0][0], atol=1e-4)  # type: ignore[index]


def test_an_approximation_never_leaves_its_conversation(executor: BatchedExecutor, tmp_path: Path) -> None:
    conversation = executor.create([65 + i for i in range(20)])
    executor.infer()
    conversation.drop(3, 8, mode="shift")
    conversation.prompt([80])
    executor.infer()
    expected = next_logits(random_model(), conversation.token_ids)[-1]
    assert not torch.allclose(expected, conversation.logits(), atol=1e-6)
    assert torch.allclose(expected, conversation.state.logits[0, 0], atol=1e-6)
    conversation.save(tmp_path / "saved")
    loaded = executor.load(tmp_path / "saved")
    executor.infer()
    assert torch.allclose(expected, loaded.logits(), atol=1e-6)
    assert not loaded.is_approximate
    fork = conversation.fork()
    fork.drop(10, 12, mode="shift")
    fork.rewind(len(fork) - 6)
    assert fork.is_approximate  # from the first of the two gaps on
    fork.rewind(len(fork) - 3)
    assert not fork.is_approximate
    same_logits(fork)
    conversation.drop(2, 4)
    assert not conversation.is_approximate
    same_logits(conversation)
    conversation.prompt([81, 82])
    conversation.drop(len(conversation) - 3, len(conversation) - 1, mode="shift")  # nothing behind it was fed
    assert not conversation.is_approximate
    executor.infer()
    same_logits(conversation)


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "recurrent"])
def test_a_model_without_plain_rotary_positions_refuses_to_shift(family: str) -> None:
    is_recurrent = family == "recurrent"
    model = models.from_transformers(recurrent_network(), TOKENIZER) if is_recurrent else random_model(family)
    with BatchedExecutor(model) as executor:
        conversation = executor.create("the name of")
        executor.infer()
        ids = conversation.token_ids
        with pytest.raises(UnsupportedModel, match='Use `mode="recompute"`'):
            conversation.drop(1, 2, mode="shift")
        assert ids == conversation.token_ids
        same_logits(conversation)


# -- states and files --------------------------------------------------------------------------------------------------


def test_a_state_is_taken_in_and_given_out_without_feeding_anything_again(executor: BatchedExecutor) -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name", max_tokens=4)
    state.logits
    conversation = executor.create(state)
    with model.meter() as meter:
        assert executor.infer() == 0
        assert torch.equal(state.logits[0, 0], conversation.logits())
    assert meter.forwards == 0
    conversation.prompt(" of")
    with model.meter() as meter:
        written = continuous(generate.text(model))(conversation.state, max_tokens=3)
    assert meter.recomputed_tokens == 0
    assert [*conversation.token_ids, *greedy_ids(model, conversation.token_ids, 3)] == written.token_ids[0, 0].tolist()
    conversation.prompt(SequenceState.stack([state]))
    executor.infer()
    assert conversation.text == str(state) + " of" + str(state)
    same_logits(conversation)


def test_a_piece_that_was_cut_is_resumed_from_a_fork(executor: BatchedExecutor) -> None:
    model = random_model()
    write = continuous(generate.regex(model, "[a-z]{3,8} [a-z]{3,8}"))
    cut = write("the name: ", max_tokens=2)
    fork = executor.create(cut).fork()
    assert write.resume(cut) == write.resume(fork.state) == write("the name: ")


def test_wrong_states_are_refused(executor: BatchedExecutor) -> None:
    conversation = executor.create("a")
    two = continuous(generate.text(random_model()))(["a", "b"], max_tokens=1)
    with pytest.raises(SampleMismatch, match="one row"):
        conversation.prompt(two)
    other = continuous(generate.text(random_model("gpt2")))("a", max_tokens=1)
    with pytest.raises(ModelMismatch):
        conversation.prompt(other)
    bad = continuous(generate.text(random_model()))(["a" * 400, "b"], max_tokens=1)
    with pytest.raises(OptionError, match="failed"):
        conversation.prompt(bad.take([(0, 0)]))


@pytest.mark.parametrize("kv", [True, False])
def test_a_saved_conversation_goes_on_as_if_nothing_had_happened(executor: BatchedExecutor, tmp_path: Path, kv: bool) -> None:
    conversation = executor.create("the name")
    sampler = samplers.multinomial()
    executor.infer()
    conversation.step(sampler)
    executor.infer()
    logits = conversation.logits()
    conversation.save(tmp_path / "fed", kv=kv)
    conversation.prompt(" of")
    conversation.save(tmp_path / "pending", kv=kv)

    fed, pending = executor.load(tmp_path / "fed"), executor.load(tmp_path / "pending")
    assert (0 if kv else len(fed)) == fed.num_pending
    assert pending.num_pending >= conversation.num_pending
    executor.infer()
    assert torch.equal(logits, fed.logits()) if kv else torch.allclose(logits, fed.logits(), atol=1e-9)
    fed.prompt(" of")
    for _ in range(5):
        executor.infer()
        executor.step([conversation, fed, pending], sampler)
    assert conversation.token_ids == fed.token_ids == pending.token_ids


@pytest.mark.parametrize("kv", [True, False])
def test_what_was_constrained_when_it_was_saved_asks_for_its_constraint(executor: BatchedExecutor, tmp_path: Path, kv: bool) -> None:
    expression = fsm.choice(["abc", "abd"])
    conversation = executor.create("x: ")
    conversation.constrain(expression)
    start = len(conversation)
    conversation.prompt([TOKENIZER._ids[b"a"], TOKENIZER._ids[b"b"]])
    conversation.save(tmp_path / "held", kv=kv)
    assert SequenceState.load(tmp_path / "held", random_model()) == conversation.state

    loaded = executor.load(tmp_path / "held")
    executor.infer()
    for one in (loaded, loaded.fork()):
        for call in (one.sample, one.step, lambda one=one: one.allowed, lambda one=one: one.is_accepting):
            with pytest.raises(ConstraintRequired, match=r"Call `constrain\(expression\)` once more") as caught:
                call()
            assert caught.value.start == start
    with pytest.raises(fsm.TokenNotAllowed):
        loaded.constrain(fsm.regex("[0-9]+"))
    free = loaded.fork()
    free.constrain(None)
    assert free.allowed == TokenSet.all
    loaded.rewind(1)
    loaded.save(tmp_path / "again", kv=kv)
    loaded = executor.load(tmp_path / "again")
    loaded.constrain(expression)
    conversation.rewind(1)
    assert loaded.allowed == conversation.allowed
    assert not loaded.is_accepting
    loaded.prompt("bd")
    assert loaded.is_accepting


def test_a_constraint_that_is_over_or_lifted_asks_for_nothing(executor: BatchedExecutor, tmp_path: Path) -> None:
    conversation = executor.create("x: ")
    conversation.constrain("a")
    conversation.prompt("a")
    executor.infer()
    assert conversation.step() in random_model().eos_token_ids
    conversation.save(tmp_path / "over")
    conversation.constrain(fsm.regex("b"))
    conversation.constrain(None)
    conversation.save(tmp_path / "lifted")
    for name in ("over", "lifted"):
        assert executor.load(tmp_path / name).allowed == TokenSet.all


def test_a_text_as_a_constraint_stands_for_itself(executor: BatchedExecutor) -> None:
    conversation = executor.create("x: ")
    conversation.constrain("[a-z]+")
    with pytest.raises(fsm.TokenNotAllowed):
        conversation.prompt("abc")
    conversation.prompt("[a-z]+")
    assert conversation.is_accepting


def test_files_that_do_not_fit_load_nothing(executor: BatchedExecutor, tmp_path: Path) -> None:
    executor.create("the name").save(tmp_path / "saved")
    with BatchedExecutor(random_model("gpt2")) as other:
        with pytest.raises(StateMismatch):
            other.load(tmp_path / "saved")
        continuous(generate.text(random_model("gpt2")))(["a", "b"], max_tokens=1).save(tmp_path / "two")
        with pytest.raises(SampleMismatch, match="one row"):
            other.load(tmp_path / "two")
        with pytest.raises(StateFileError, match="Make it first"):
            other.create("x").save(tmp_path / "none" / "x")
        assert other.conversations == []


# -- memory and threads ------------------------------------------------------------------------------------------------


def test_closing_everything_frees_everything() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    executor = BatchedExecutor(model)
    conversation = executor.create("the name of the rose")
    executor.infer()
    marks = [conversation.mark()]
    forks = [conversation.fork() for _ in range(3)]
    for _ in range(4):
        executor.step()
        executor.infer()
    forks[0].drop(1, 3)
    forks[1].drop(1, 3, mode="shift")
    forks[2].rewind(2)
    executor.infer()
    assert executor.kv_bytes >= kv_bytes([fork.state for fork in forks]) > 0
    for one in [conversation, *forks]:
        one.close()
    assert (executor.kv_bytes, model.kv_store.nbytes) == (0, 0)
    assert len(marks) == 1
    executor.close()


def test_a_conversation_that_nobody_holds_is_gone() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    executor = BatchedExecutor(model)
    kept = executor.create("the name")
    executor.create("of the rose")
    assert [kept] == executor.conversations
    with executor.create("red") as inside:
        executor.infer()
        assert inside.text == "red"
    assert inside.is_closed
    gc.disable()
    try:
        del kept
        assert (executor.kv_bytes, model.kv_store.nbytes) == (0, 0)
    finally:
        gc.enable()


def test_work_finishes_under_a_budget_that_holds_one_conversation_at_a_time() -> None:
    per_token = 2 * 2 * 2 * 8 * 8
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), kv_budget_bytes=150 * per_token)
    with BatchedExecutor(model) as executor:
        conversations = [executor.create([65 + i + j % 7 for j in range(40)]) for i in range(4)]
        for _ in range(2):
            executor.infer()
            executor.step()
        executor.infer()
        for conversation in conversations:
            expected = next_logits(model, conversation.token_ids)[-1]
            assert torch.allclose(expected, conversation.logits(), atol=1e-6)
        long = executor.create([65] * 200)
        with pytest.raises(KVBudgetError):
            executor.infer()
        assert long.num_pending == 200
        long.close()
        executor.infer()
        same = next_logits(model, conversations[0].token_ids)[-1]
        assert torch.allclose(same, conversations[0].logits(), atol=1e-6)


def test_threads_share_an_executor(executor: BatchedExecutor) -> None:
    model = random_model()
    results: dict[int, list[int]] = {}

    def talk(number: int) -> None:
        conversation = executor.create([65 + number])
        for _ in range(6):
            with executor.lock:
                executor.infer()
                conversation.step()
        results[number] = conversation.token_ids

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, ids in results.items():
        assert [65 + number, *any_greedy(model, [65 + number], 6)] == ids


def test_going_back_and_looking_back_cost_no_forward_as_long_as_the_logits_are_kept() -> None:
    model = random_model()
    with BatchedExecutor(model, seed=1) as executor, BatchedExecutor(model, seed=1, kept_logits_bytes=0) as forgetful:
        pair = [home.create("the name of") for home in (executor, forgetful)]
        for home, conversation in zip((executor, forgetful), pair, strict=True):
            for _ in range(6):
                home.infer()
                conversation.step()
            home.infer()
        length = len(pair[0])
        costs, lines = [], []
        for conversation in pair:
            with model.meter() as meter:
                fork = conversation.fork(same=True)
                conversation.rewind(3)
                lines.append(conversation.logits(range(length - 6, length - 3)))
                lines.append(fork.logits(range(length - 6, length)))
                assert conversation.sample() == fork.token_ids[length - 3]
                conversation.prompt("x")
                fork.rewind(1)
                fork.logits(-1)
            costs.append(meter.forwards)
        assert costs[0] == 0 < costs[1]
        assert torch.allclose(lines[0], lines[2], atol=1e-9)
        assert torch.allclose(lines[1], lines[3], atol=1e-9)
        wanted = next_logits(model, pair[0].token_ids[:-1])
        assert torch.allclose(pair[0].logits(range(length - 6, length - 3)), wanted[length - 6 : length - 3], atol=1e-9)
        del fork, conversation
        assert executor.kv_bytes >= forgetful.kv_bytes + 3 * 351 * 8


def test_special_tokens_of_a_template_are_prompted_as_such() -> None:
    model = random_model()
    with BatchedExecutor(model) as executor:
        conversation = executor.create(Tokens.of("<s>the<end>", special=True))
        conversation.prompt(Tokens.of("name<end>", special=True))
        conversation.prompt(Tokens.of("<end>"))
        special = [i for i in conversation.token_ids if i in model.tokenizer.special_tokens]
        assert [model.tokenizer.special_tokens[i] for i in special] == ["<s>", "<end>", "<end>"]
        assert str(conversation.state) == "<s>the<end>name<end><end>"
        assert conversation.text == "thename<end>"
        with pytest.warns(SpecialTokenWarning):
            conversation.prompt("<end>")
        ids = executor.create(TOKENIZER.encode("the", add_special_tokens=True))
        assert str(ids.state) == "the"


def test_logits_that_were_read_from_the_state_are_known_to_the_conversation() -> None:
    model = random_model()
    with BatchedExecutor(model, kept_logits_bytes=0) as executor:
        conversation = executor.create("the name of")
        executor.infer()
        conversation.rewind(1)
        with model.meter() as meter:
            read = [conversation.state.logits[0, 0], conversation.state.logits[0, 0], conversation.logits()]
        assert meter.forwards == 1
        assert torch.equal(read[0], read[2])
        same_logits(conversation)
