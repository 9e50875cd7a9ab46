"""Log-probabilities of given texts against one plain forward of transformers over all ids."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from outlines_cont import Tokens, continuous, engine_of, generate, models, samplers
from outlines_cont.engine import scoring
from outlines_cont.errors import BatchMismatch, ContextLengthError, InvalidLogits, ModelMismatch, PromptTypeError
from outlines_cont.state.tokens import prompt_ids
from tests.fakes import DEVICE, FakeTokenizer, fresh_model, random_model, random_network, recurrent_network, scripted_model

_network = cache(lambda family: recurrent_network() if family == "recurrent" else random_network(family))
WORDS = ("the name", " is", "a", " red 12", "é🙂", ", and some more words of it", "\n")


def plain(family: str, ids: list[int]) -> list[float]:
    """The log-probabilities of all ids but the first."""
    with torch.no_grad():
        logits = _network(family)(torch.tensor([ids], device=DEVICE)).logits[0].double().cpu()
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize("most", [2**26, 1], ids=["whole", "parts"])
def test_texts_are_scored_as_by_a_plain_forward(family: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_MAX_LOGITS", most)
    monkeypatch.setattr(scoring, "_LEAST", 3)
    model, drawn = random_model(family), random.Random(2)
    for _ in range(3):
        prompts = ["".join(drawn.choices(WORDS, k=drawn.randint(1, 6))) for _ in range(drawn.randint(1, 3))]
        texts = ["".join(drawn.choices(WORDS, k=drawn.randint(1, 5))) for _ in prompts]
        found = model.score(prompts, texts)
        for prompt, text, scores in zip(prompts, texts, found, strict=True):
            before, _ = prompt_ids(prompt, model)
            ids = [*before, *model.tokenizer.encode_inside(text, before)]
            assert scores.dtype == torch.float32
            assert scores.tolist() == pytest.approx(plain(family, ids)[len(before) - 1 :], abs=1e-5)
            assert model.score(tuple(before), ids[len(before) :]).tolist() == pytest.approx(scores.tolist(), abs=1e-5)
        many = model.score(prompts[0], texts)
        assert many[0].tolist() == pytest.approx(found[0].tolist(), abs=1e-5)
        assert model.score(prompts, texts[-1])[-1].tolist() == pytest.approx(found[-1].tolist(), abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "recurrent"])
def test_a_state_is_scored_in_its_context_and_its_prefix_is_not_fed_again(family: str) -> None:
    model = random_model() if family == "llama" else models.from_transformers(recurrent_network(), FakeTokenizer())
    state = continuous(generate.regex(model, "[a-z]{3} is", sampler=samplers.multinomial(2)))(["the name", "a"], rng=1)
    with model.meter() as meter:
        (scores, *_) = model.score(state, " red 12")
    ids = [*state.rows[0][0].token_ids]
    text = model.tokenizer.encode_inside(" red 12", ids)
    assert scores.tolist() == pytest.approx(plain(family, [*ids, *text])[len(ids) - 1 :], abs=1e-5)
    lacking = sum(len(row.token_ids) - row.cached for group in state.rows for row in group)
    assert meter.fed_tokens + meter.recomputed_tokens <= 4 * len(text) + lacking + (0 if family == "llama" else 4)
    longer = state + " é"
    whole, known = longer.score(), longer.logprobs
    assert whole.shape == longer.shape
    for b, group in enumerate(longer.rows):
        for s, row in enumerate(group):
            pad = whole.shape[2] - len(row.token_ids)
            assert whole[b, s, : pad + 1].isnan().all()
            assert whole[b, s, pad + 1 :].tolist() == pytest.approx(plain(family, [*row.token_ids]), abs=1e-5)
            is_known = ~known[b, s].isnan()
            assert is_known.any()
            assert whole[b, s][is_known].tolist() == pytest.approx(known[b, s][is_known].tolist(), abs=1e-5)


def test_a_prompt_that_texts_share_is_fed_once() -> None:
    model = fresh_model()
    prompt = "the name and some more words of it " * 4
    with model.meter() as meter:
        found = model.score(prompt, [" red", " green", " blue"])
    assert meter.fed_tokens <= len(model.tokenizer.encode(prompt)) + 12
    assert [len(scores) for scores in found] == [1, 1, 1]
    assert engine_of(model).num_running == 0


def test_what_cannot_be_scored_is_refused_and_edges_are_empty_or_nan() -> None:
    model = random_model()
    assert model.score("the", "").shape == (0,)
    assert model.score("", "the name").isfinite().all()  # after BOS
    assert model.score([3], [5, 7]).shape == (2,)
    assert [len(one) for one in model.score(["a", "b"], ["x"])] == [1, 1]
    with pytest.raises(BatchMismatch, match="2 prompts and 3 texts"):
        model.score(["a", "b"], ["x", "y", "z"])
    for prompt, text in ((3, "a"), ("a", None), ([], "a"), ("a", []), ("a", [b"x"])):
        with pytest.raises(PromptTypeError, match="expected a `"):
            model.score(prompt, text)
    with pytest.raises(ContextLengthError):
        model.score("a", "a" * (model.context_length + 2))
    with pytest.raises(ModelMismatch):
        model.score(continuous(generate.text(fresh_model()))("a", max_tokens=1), "b")
    broken = scripted_model(lambda ids: {5: float("nan")} if ids[:2] == [7, 7] else {5: 1.0})
    with pytest.raises(InvalidLogits):
        broken.score([7, 7], "a text")


def test_a_token_that_the_model_excludes_has_minus_infinity() -> None:
    model = scripted_model(lambda ids: {5: 1.0, 7: float("-inf")})
    assert model.score([3, 4], [7]).tolist() == [float("-inf")]
    assert model.score([3, 4], Tokens.of("a")).isfinite().all()
