"""What a call, a program or a conversation refuses before anything runs, and what it does with nothing to do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from outlines_cont import BatchedExecutor, SequenceState, continuous, control, generate, models, policies, samplers
from outlines_cont.errors import (
    ContextLengthError,
    InvalidLogits,
    OptionError,
    ResumeError,
    TokenizerError,
    UnsupportedModel,
)
from outlines_cont.generation.options import Options
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.constraint import Constraint
from tests.fakes import FakeTokenizer, random_model, random_network, recurrent_network


def test_a_search_needs_rows_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HuggingFaceModel, "can_stack", False)
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    with pytest.raises(UnsupportedModel, match=r"samplers\.best_of\(n\)"):
        generate.text(model, sampler=samplers.beam_search(2))("the", max_tokens=2)
    assert generate.text(model, sampler=samplers.best_of(2))("the", max_tokens=2)


def test_a_piece_that_its_generator_would_not_write_is_not_resumed() -> None:
    model = random_model()
    letters, digits = (continuous(generate.regex(model, pattern)) for pattern in ("[a-z]{9}", "[0-9]{9}"))
    cut = letters("the ", max_tokens=3)
    (row,) = cut.rows[0]
    assert row.piece is not None
    other = digits("the ", max_tokens=3).rows[0][0].piece
    assert other is not None
    forged = replace(row, piece=replace(row.piece, source=other.source))
    with pytest.raises(ResumeError, match="its last piece is not a prefix of what the generator"):
        digits.resume(SequenceState(model, ((forged,),), 0))
    assert letters.resume(cut).finish_reasons == [["constraint"]]


def test_a_prompt_that_cannot_be_read_is_refused_at_the_start() -> None:
    with pytest.raises(ContextLengthError):
        control.start(random_model(), lambda *_: [], "x" * 5000)


def test_a_recurrent_model_has_no_bytes_to_budget() -> None:
    async def script() -> None:
        await control.fixed("a")

    model = models.from_transformers(recurrent_network(), FakeTokenizer())
    with pytest.raises(OptionError, match="expected no `kv_bytes` for a recurrent model") as caught:
        control.run(model, script, "the", budget=control.Budget(kv_bytes=10**9))
    assert caught.value.option == "kv_bytes"


def test_an_executor_with_nothing_to_feed_feeds_nothing() -> None:
    with BatchedExecutor(random_model()) as executor:
        assert executor.infer() == 0
        conversation = executor.create("the")
        assert executor.infer() > 0
        assert executor.infer() == 0
        assert conversation.logits().isfinite().all()


def test_a_constraint_says_of_whole_texts_whether_they_are_of_its_language() -> None:
    model = random_model()
    (policy,) = (p for p in generate.regex(model, "ab+").policies(Options.of({})) if isinstance(p, Constraint))
    for text, expected in (("ab", True), ("abbb", True), ("a", False), ("ba", False), ("abc", False), ("", False)):
        assert expected is policy.accepts(model.tokenizer.encode_inside(text, ()))


def test_a_replacement_that_knows_no_tokens_says_how_it_learns_them() -> None:
    state = continuous(generate.text(random_model()))("a", max_tokens=2)
    policy = policies.replace({"a": "b"})
    with pytest.raises(TypeError, match="expected a policy for a model"):
        policy.initial(state.rows[0][0])  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.best_of(2), samplers.beam_search(2)], ids=str)
def test_a_model_without_one_finite_logit_says_so_whatever_the_sampler(sampler: Any) -> None:
    network = random_network("llama")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(math.nan)
    model = models.from_transformers(network, FakeTokenizer())
    with pytest.raises(InvalidLogits, match="check the checkpoint"):
        generate.text(model, sampler=sampler)("a", max_tokens=2)


def test_a_token_of_the_tokenizer_that_the_model_lacks_is_named() -> None:
    network = random_network("llama")
    network.resize_token_embeddings(300)
    write = generate.text(models.from_transformers(network, FakeTokenizer()))
    assert write("a", max_tokens=1) is not None
    with pytest.raises(TokenizerError, match="from 0 to 299.*Resize the embedding"):
        write("the name of", max_tokens=1)
    with pytest.raises(TokenizerError, match="from 0 to 299, those of the model, got 300"):
        write([3, 300], max_tokens=1)


def test_a_state_is_appended_as_it_is_added() -> None:
    state = continuous(generate.text(random_model()))("the name", max_tokens=2)
    both = state.append(state)
    assert both == state + state
    assert torch.equal((state + state).weights, both.weights)
    with pytest.raises(OptionError, match=r"'as_is' with a state.*Append its texts, `list\(other\)`"):
        state.append(state, boundary="heal")
