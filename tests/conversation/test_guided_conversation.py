"""Classifier-free guidance, against the formula by hand."""

from __future__ import annotations

import math

import pytest
import torch

from outlines_cont import BatchedExecutor, GuidedConversation, TokenSet, continuous, generate, guide, samplers
from outlines_cont.errors import ContextLengthError, InferenceRequired, ModelMismatch, OptionError
from tests.fakes import EOS, random_model, saying, scripted_model
from tests.oracle import greedy_ids, next_logits


def by_hand(positive: list[int], negative: list[int], scale: float) -> torch.Tensor:
    pos, neg = (next_logits(random_model(), ids)[-1].log_softmax(-1) for ids in (positive, negative))
    return neg + scale * (pos - neg)


@pytest.mark.parametrize("scale", [0, 0.5, 1, 1.5, 3.0, -1])
def test_the_next_tokens_are_those_of_the_formula(scale: float) -> None:
    with BatchedExecutor(random_model()) as executor:
        guided = guide(executor.create("the red rose"), executor.create("green"), scale)
        for _ in range(5):
            guided.infer()
            expected = by_hand(guided.positive.token_ids, guided.negative.token_ids, scale)
            assert torch.allclose(expected, guided.scores(), atol=1e-9)
            token_id = guided.step()
            assert int(expected.argmax()) == token_id
            assert token_id == guided.positive.token_ids[-1] == guided.negative.token_ids[-1]


def test_a_scale_of_one_is_the_positive_context_alone() -> None:
    model = random_model()
    positive, negative = (continuous(generate.text(model))(text, max_tokens=2) for text in ("the name", "red"))
    with model.meter() as meter:
        written = guide(positive, negative, 1).write(6)
    ids = positive.token_ids[0, 0].tolist()
    assert [*ids, *greedy_ids(model, ids, 6)] == written.token_ids[0, 0].tolist()
    assert meter.forwards == 6
    assert positive.token_ids.shape[2] == len(ids)  # states stay as they are


def test_both_contexts_run_in_one_forward_and_draw_the_positives_numbers() -> None:
    model = random_model()
    with BatchedExecutor(model) as executor:
        positive = executor.create("the name", seed=1)
        twin = positive.fork(same=True)
        guided = guide(positive, executor.create("red"), 1)
        for _ in range(5):
            with model.meter() as meter:
                executor.infer()
            assert meter.forwards == 1
            assert twin.step(samplers.multinomial()) == guided.step(samplers.multinomial())


def test_an_end_of_text_is_not_written() -> None:
    model = scripted_model(saying("ok"))
    with BatchedExecutor(model) as executor:
        guided = guide(executor.create("say>"), executor.create("no>"), 2)
        state = guided.write(9)
        assert str(state) == "say>ok"
        assert EOS not in state.token_ids[0, 0].tolist()
        assert guided.negative.text == "no>ok"


def test_infinities_are_never_numbers() -> None:
    infinity = -math.inf
    model = scripted_model(lambda ids: {65: infinity, 66: 1.0} if 70 in ids else {66: infinity, 67: 2.0})
    with BatchedExecutor(model) as executor:
        guided = guide(executor.create([70]), executor.create([71]), 2)
        guided.infer()
        scores = guided.scores()
        assert not scores.isnan().any()
        assert scores[65] == infinity
        assert torch.equal(guided.positive.logits().log_softmax(-1)[66], scores[66])
        assert guided.sample(mask=TokenSet.of([65, 66])) == 66


def test_wrong_contexts_are_refused() -> None:
    with BatchedExecutor(random_model()) as executor, BatchedExecutor(random_model()) as other:
        one = executor.create("a")
        for scale in (math.nan, math.inf, "2", True):
            with pytest.raises(OptionError, match="finite number"):
                guide(one, executor.create("b"), scale)  # type: ignore[arg-type]
        for negative in (one, other.create("b"), "b"):
            with pytest.raises(OptionError, match="expected"):
                guide(one, negative, 2)  # type: ignore[arg-type]
        state = continuous(generate.text(random_model("gpt2")))("a", max_tokens=1)
        with pytest.raises(ModelMismatch):
            guide(one, state, 2)
        guided = guide(one, executor.create("b"), 2)
        with pytest.raises(InferenceRequired):
            guided.step()
        assert isinstance(guided, GuidedConversation)


def test_a_context_that_is_full_leaves_both_as_they_were() -> None:
    with BatchedExecutor(random_model()) as executor:
        guided = guide(executor.create("a"), executor.create([65] * 256), 2)
        guided.infer()
        length = len(guided.positive)
        with pytest.raises(ContextLengthError):
            guided.step()
        assert (length, 256) == (len(guided.positive), len(guided.negative))
        assert guided.positive.num_pending == 0
        guided.scores()


def test_scores_of_another_shape_are_refused() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("a")
        executor.infer()
        with pytest.raises(OptionError, match="scores"):
            conversation.sample(scores=torch.zeros(3))
        scores = torch.full((random_model().vocab_size,), -9.0)
        scores[70] = 0
        assert conversation.sample(scores=scores) == 70
