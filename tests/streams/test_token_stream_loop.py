"""`TokenStream` beside the loop: fed with what `model.generate` of transformers writes, and drawing from logits itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from outlines_cont import TokenSet, TokenStream, continuous, generate, samplers
from outlines_cont.errors import DeadEnd, InvalidLogits, OptionError, TokenizerError
from outlines_cont.policies import FreeText
from outlines_cont.samplers import Sampler
from outlines_cont.sampling import TokenCounts
from outlines_cont.streams import draw
from tests.fakes import EOS, VOCAB_SIZE, FakeTokenizer, random_model
from tests.oracle import next_logits

PROMPT = "the name"
STOPS: list[list[str]] = [[], ["e"], ["at", "ti", "\n"], ["\x8b", "é", " o", "is"]]


def recorded(family: str, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
    """What greedy `generate` of transformers writes, without the tokens that have no text."""
    model = random_model(family)
    textless = [i for i, data in enumerate(model.tokenizer.token_bytes) if data is None and i != EOS]
    output = model.hugging_face.generate(
        torch.tensor([prompt_ids], device=model.device),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64, device=model.device),
        do_sample=False,
        max_new_tokens=max_tokens,
        suppress_tokens=textless,
    )
    ids: list[int] = output[0, len(prompt_ids) :].tolist()
    return ids


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_recorded_run_of_transformers_gives_the_texts_and_chunks_of_our_own_loop(family: str) -> None:
    model = random_model(family)
    ids = recorded(family, model.tokenizer.encode(PROMPT, add_special_tokens=True), 40)
    reached = set()
    for stops in STOPS:
        stream, chunks = TokenStream(model.tokenizer, stop_at=stops, prompt=PROMPT), []
        for token_id in ids:
            stream = stream.push(token_id)
            chunks.append(stream.new_text)
        stream = stream.flush()
        chunks.append(stream.new_text)
        state = continuous(generate.text(model))(PROMPT, max_tokens=40, stop_at=stops)
        ours = list(generate.text(model).stream(PROMPT, max_tokens=40, stop_at=stops))
        assert state.value == stream.text == "".join(chunks) == "".join(ours)
        assert len(ours) <= len([chunk for chunk in chunks if chunk])
        assert [[stream.finish_reason]] == state.finish_reasons
        reached.add(stream.finish_reason)
    assert len(ids) > 20
    assert {"stop", "length"} == reached


SAMPLERS: dict[str, Sampler] = {
    "greedy": samplers.greedy(),
    "multinomial": samplers.multinomial(temperature=1.5),
    "cut": samplers.multinomial(top_k=20, top_p=0.9, temperature=2.0),
    "penalties": samplers.multinomial(
        temperature=2.0, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, logit_bias={9: 2.0}
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_logits_that_are_pushed_give_the_tokens_of_our_own_loop_for_the_same_seed(name: str) -> None:
    model, sampler = random_model(), SAMPLERS[name]
    prompt_ids = model.tokenizer.encode(PROMPT, add_special_tokens=True)
    mask = FreeText.of_model(model).token_ids
    for seed in range(3):
        stream = TokenStream(model.tokenizer, stop_at=["et"], prompt=PROMPT)
        while not stream.finished:
            logits = next_logits(model, [*prompt_ids, *stream.token_ids])[-1]
            stream = stream.push_logits(logits, sampler, mask, rng=seed)
            assert stream.logprob is not None
            assert stream.logprob <= 0
            stream = stream.flush() if stream.num_tokens == 12 else stream
        state = continuous(generate.text(model, sampler=sampler))(PROMPT, max_tokens=12, stop_at=["et"], rng=seed)
        assert PROMPT + stream.text == str(state)
        assert [[stream.finish_reason]] == state.finish_reasons
        if stream.finish_reason == "length":
            assert [*prompt_ids, *stream.token_ids] == state.token_ids[0, 0].tolist()
            assert state.sampling_logprobs[0, 0, -1].item() == pytest.approx(stream.logprob, abs=1e-5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_draw_is_that_of_the_sampler_for_the_same_number(name: str) -> None:
    sampler, prompt = SAMPLERS[name], [5, 9, 9, 70]
    random = np.random.default_rng(3)
    stream = TokenStream(FakeTokenizer(), prompt=prompt, stop_token_ids=[])
    for at in range(30):
        logits = torch.from_numpy(random.normal(size=VOCAB_SIZE) * 3)
        allowed = TokenSet.of(random.choice(VOCAB_SIZE, 40, replace=False).tolist())
        uniform = float(random.random())
        ids = [*prompt, *stream.token_ids]
        counts = TokenCounts(ids, [i >= len(prompt) for i in range(len(ids))])
        masked = torch.tensor([[x if i in allowed else -torch.inf for i, x in enumerate(logits.tolist())]], dtype=torch.float64)
        token, logprob = sampler.sample(masked, torch.tensor([uniform], dtype=torch.float64), [counts])
        before = stream
        stream = stream.push_logits(logits[None] if at % 2 else logits, sampler, allowed, uniform=uniform)
        assert (int(token), float(logprob)) == (stream.token_ids[-1], stream.logprob)
        # From an older place on, and from a fork, the same is drawn: no count has changed.
        for again in (before, before.fork(), before.push(9).rewind(1)):
            assert stream == again.push_logits(logits, sampler, allowed, uniform=uniform)
        if at % 7 == 6:
            stream = stream.rewind(3)


def test_counts_of_penalties_are_kept_up_and_made_anew_only_where_a_stream_goes_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(token_ids: Sequence[int], *others: Any, **options: Any) -> TokenCounts:
        made.append(len(token_ids))
        return TokenCounts(token_ids, *others, **options)

    monkeypatch.setattr(draw, "TokenCounts", counted)
    sampler, logits = samplers.multinomial(frequency_penalty=0.4), torch.zeros(VOCAB_SIZE)
    stream = TokenStream(FakeTokenizer(), prompt=[9, 9], stop_token_ids=[])
    for at in range(30):
        stream = stream.push_logits(logits, sampler, rng=1) if at % 3 else stream.push(40)
    assert made == [3]  # at the first draw, after two ids of the prompt and one that was pushed
    fork = stream.fork()
    for _ in range(5):
        stream, fork = stream.push_logits(logits, sampler, rng=2), fork.push_logits(logits, sampler, rng=3)
    assert made == [3, 32]
    stream.rewind(4).push_logits(logits, sampler, rng=1)
    assert made == [3, 32, 33]


def test_half_precision_is_drawn_from_as_float32() -> None:
    logits = torch.linspace(-3, 3, VOCAB_SIZE)
    stream = TokenStream(FakeTokenizer())
    for dtype in (torch.bfloat16, torch.float16):
        wanted = stream.push_logits(logits.to(dtype).float(), samplers.multinomial(), uniform=0.4)
        assert wanted == stream.push_logits(logits.to(dtype), samplers.multinomial(), uniform=0.4)


def test_random_numbers_come_from_a_seed_a_generator_or_the_system() -> None:
    stream, logits, sampler = TokenStream(FakeTokenizer()), torch.zeros(VOCAB_SIZE), samplers.multinomial()
    first = stream.push_logits(logits, sampler, rng=5)
    second = first.push_logits(logits, sampler, rng=5)
    assert first == stream.push_logits(logits, sampler, rng=5)
    assert first.token_ids[-1] != second.token_ids[-1]  # the next number of the seed
    assert second == second.rewind(1).push_logits(logits, sampler, rng=5)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    drawn = [[stream.push_logits(logits, sampler, rng=g).token_ids for _ in range(4)] for g in generators]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1
    assert len({stream.push_logits(logits, sampler).token_ids for _ in range(12)}) > 1
    state = generators[0].get_state()
    stream.push_logits(logits, samplers.greedy(), rng=generators[0])
    assert torch.equal(state, generators[0].get_state())


def test_a_finished_stream_draws_nothing() -> None:
    ended, generator = TokenStream(FakeTokenizer()).push(EOS), torch.Generator().manual_seed(1)
    state = generator.get_state()
    assert ended == ended.push_logits(torch.zeros(VOCAB_SIZE), samplers.multinomial(), rng=generator)
    assert torch.equal(state, generator.get_state())


@pytest.mark.parametrize(
    ("logits", "options", "error", "message"),
    [
        ([0.0] * VOCAB_SIZE, {}, TypeError, "a tensor of floats as `logits`, got list"),
        (torch.zeros(VOCAB_SIZE, dtype=torch.int64), {}, TypeError, "got tensor of torch.int64"),
        (torch.zeros(2, VOCAB_SIZE), {}, ValueError, r"`logits` of one row.*got the shape \(2, 351\)"),
        (torch.zeros(0), {}, ValueError, r"got the shape \(0,\)"),
        (torch.full((VOCAB_SIZE,), torch.nan), {}, InvalidLogits, "expected finite logits, got NaN"),
        (torch.full((VOCAB_SIZE,), -torch.inf), {}, InvalidLogits, "minus infinity for every token"),
        (torch.zeros(VOCAB_SIZE), {"mask": [3]}, TypeError, "expected a `TokenSet` as `mask`"),
        (torch.zeros(VOCAB_SIZE), {"mask": TokenSet.of([VOCAB_SIZE])}, ValueError, "in `mask`"),
        (torch.zeros(VOCAB_SIZE), {"mask": TokenSet.none}, DeadEnd, "or the mask has none"),
        (torch.zeros(VOCAB_SIZE), {"uniform": 1.0}, OptionError, "as `uniform`, got 1.0"),
        (torch.zeros(VOCAB_SIZE), {"uniform": float("nan")}, OptionError, "as `uniform`, got nan"),
        (torch.zeros(VOCAB_SIZE), {"uniform": 0.5, "rng": 1}, OptionError, "`uniform` or `rng`, got both"),
        (torch.zeros(VOCAB_SIZE), {"rng": -1}, OptionError, "expected a seed as `rng`"),
        (torch.zeros(VOCAB_SIZE), {"rng": [1]}, OptionError, "an int or a generator as `rng`, got list"),
        (torch.zeros(VOCAB_SIZE + 9), {"uniform": 0.9999}, TokenizerError, "expected a token id from 0 to 350"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused_and_changes_nothing(
    logits: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    sampler = samplers.multinomial(frequency_penalty=0.1)
    stream = TokenStream(FakeTokenizer()).push(20)
    good = torch.zeros(VOCAB_SIZE)
    wanted = stream.push_logits(good, sampler, uniform=0.5)
    with pytest.raises(error, match=message):
        stream.push_logits(logits, sampler, **options)
    assert wanted == stream.push_logits(good, sampler, uniform=0.5)


def test_a_search_draws_no_single_token() -> None:
    with pytest.raises(OptionError, match="expected a sampler that draws token by token") as caught:
        TokenStream(FakeTokenizer()).push_logits(torch.zeros(VOCAB_SIZE), samplers.beam_search(2))  # type: ignore[arg-type]
    assert caught.value.option == "sampler"
