"""A deterministic model: the logits after a text are the same bits, however it was batched, cut, cached, forked or drafted."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

from outlines_cont import SequenceState, continuous, engine_of, generate, models, samplers
from outlines_cont.errors import OptionError, UnsupportedModel
from outlines_cont.models import capability
from outlines_cont.models.invariant import InvariantDecoder
from tests.fakes import FakeTokenizer, random_network, recurrent_network

HALF, SINGLE = torch.bfloat16, torch.float32
WORDS = ("the name", " is", " red", "12", ", and more of it", "\n", "é")


@cache
def _opened(family: str, dtype: torch.dtype) -> Any:
    try:
        return models.from_transformers(random_network(family, dtype=dtype), FakeTokenizer(), deterministic=True)
    except UnsupportedModel as error:
        if dtype is not HALF or "rows of its products differ" not in str(error):
            raise
        return f"the libraries of this machine multiply rows of {dtype} by their place, so that it has no deterministic model: {error}"


def _model(family: str, dtype: torch.dtype) -> Any:
    model = _opened(family, dtype)
    if isinstance(model, str):
        pytest.skip(model)
    return model


def _prompt(drawn: random.Random) -> str:
    return "".join(drawn.choices(WORDS, k=drawn.randint(1, 12)))


def _facts(row: Any) -> tuple[Any, ...]:
    """What a row has written, with its log-probabilities, bit by bit."""
    return row.token_ids, row.logprobs, row.sampling_logprobs


def _alone(model: Any, prompt: str, seed: int, most: int) -> tuple[Any, ...]:
    """A text by itself, in a model that has seen nothing."""
    model.prefix_cache.clear()
    state = continuous(generate.text(model, sampler=samplers.multinomial()))(prompt, max_tokens=most, rng=seed)
    return _facts(state.rows[0][0])


@pytest.mark.parametrize(("family", "dtype"), [("llama", HALF), ("gemma3", HALF), ("gpt2", SINGLE), ("mistral", SINGLE)], ids=str)
def test_texts_and_log_probabilities_are_the_same_bits_in_random_mixes(family: str, dtype: torch.dtype) -> None:
    model, drawn = _model(family, dtype), random.Random(f"{family} {dtype}")
    engine = engine_of(model)
    free = continuous(generate.text(model, sampler=samplers.multinomial()))
    for _ in range(2):
        asked = [(_prompt(drawn), drawn.randrange(5)) for _ in range(drawn.randint(2, 4))]
        most = drawn.randint(2, 5)
        wanted = [_alone(model, prompt, seed, most) for prompt, seed in asked]
        prompts, seeds = [prompt for prompt, _ in asked], [seed for _, seed in asked]
        before, engine.max_batch_tokens = engine.max_batch_tokens, drawn.choice([7, 64, 4096])
        try:
            # In one batch, in chunks, from the prefix cache or not.
            for cached in (False, True):
                if not cached:
                    model.prefix_cache.clear()
                state = free(prompts, max_tokens=most, rng=seeds)
                assert [_facts(row) for (row,) in state.rows] == wanted
            # Cut and resumed beside others, and forked.
            cut = free(prompts, max_tokens=1, rng=seeds)
            resumed = [free.resume(one, max_tokens=most - 1) for one in (cut, cut.fork(2, same=True))]
            assert [_facts(row) for (row,) in resumed[0].rows] == wanted
            assert [_facts(row) for group in resumed[1].rows for row in group] == [one for one in wanted for _ in range(2)]
            # With a draft, whose guesses are read in one forward.
            drafted = free(prompts, max_tokens=most, rng=seeds, draft="lookup")
            assert [_facts(row) for (row,) in drafted.rows] == wanted
        finally:
            engine.max_batch_tokens = before


def test_states_that_were_cropped_saved_and_scored_have_the_same_bits(tmp_path: Any) -> None:
    model, drawn = _model("llama", HALF), random.Random(4)
    write = continuous(generate.text(model))
    prompt = _prompt(drawn)
    whole = write(prompt, max_tokens=8)
    kept = whole.tokens[: whole.shape[2] - 3]
    kept.save(tmp_path / "state")
    states = [kept, SequenceState.load(tmp_path / "state", model), kept.detach_cache()]
    found = [write([state, "x", "some other words"], max_tokens=3) for state in states]
    assert {state.rows[0][0].token_ids for state in found} == {whole.rows[0][0].token_ids}
    assert {state.rows[0][0].logprobs[-3:] for state in found} == {whole.rows[0][0].logprobs[-3:]}
    scores = model.score(kept, whole.rows[0][0].token_ids[-3:])
    assert scores.tolist() == pytest.approx(whole.logprobs[0, 0, -3:].tolist(), abs=0)


def test_the_logits_are_those_of_transformers_up_to_rounding() -> None:
    for family in ("llama", "gpt2", "mistral"):
        found = _model(family, SINGLE)
        plain = random_network(family, dtype=SINGLE)
        ids = found.tokenizer.encode("the name is red, and more of it " * 3)
        with torch.no_grad():
            wanted = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
        scores = found.score([ids[0]], ids[1:])
        torch.testing.assert_close(scores, wanted[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0], rtol=0, atol=2e-3)
        assert found.capabilities.exact
        assert not found.capabilities.branch


def test_what_cannot_be_deterministic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FakeTokenizer()
    with pytest.raises(OptionError, match="fused=False"):
        models.from_transformers(random_network("llama", dtype=SINGLE), tokenizer, fused=False, deterministic=True)
    for network in (random_network("llama"), recurrent_network()):  # float64 runs by transformers
        with pytest.raises(UnsupportedModel, match="deterministic"):
            models.from_transformers(network, tokenizer, deterministic=True)
    network = random_network("llama", dtype=SINGLE)
    model = models.from_transformers(network, tokenizer, deterministic=True)
    network.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match="deterministic"):
        generate.text(model)("the", max_tokens=2)
    # Where the libraries of a machine multiply rows by their place.
    changed, opened = random_network("llama", dtype=SINGLE), _model("llama", SINGLE)
    heads = InvariantDecoder._heads_of
    monkeypatch.setattr(
        InvariantDecoder,
        "_heads_of",
        lambda self, x, *given: heads(self, x, *given) * (1 + 0.01 * torch.arange(len(x), dtype=SINGLE)[:, None, None]),
    )
    assert not capability.is_invariant(changed.config, opened, opened._fused_forward)


def test_capabilities_say_what_equal_means() -> None:
    for dtype, part in ((torch.float64, "equal to 2e-16"), (SINGLE, "equal to 1e-07"), (HALF, "bfloat16"), (torch.float16, "float16")):
        found = models.from_transformers(random_network("llama", dtype=dtype), FakeTokenizer()).capabilities
        assert not found.exact
        assert "up to rounding" in found.exact.why
        assert part in found.exact.why
        assert ("deterministic=True" in found.exact.why) == (dtype in (HALF, torch.float16))
        assert "exact" in str(found)
