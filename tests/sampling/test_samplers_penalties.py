"""Penalties: what they count, what they do to logits, and that rewinds take counts back."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from outlines_cont import continuous, generate
from outlines_cont.errors import OptionError
from outlines_cont.samplers import greedy
from outlines_cont.sampling import TokenCounts
from outlines_cont.sampling.params import penalised
from tests.fakes import random_model
from tests.oracle import next_logits
from tests.sampling_oracle import plain_law

_APPENDS = st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=200)


@settings(max_examples=100)
@given(_APPENDS, _APPENDS, st.integers(0, 200), _APPENDS)
def test_counts_that_are_kept_up_are_those_of_the_row(
    start: list[tuple[int, bool]], more: list[tuple[int, bool]], back: int, after: list[tuple[int, bool]]
) -> None:
    counts = TokenCounts([t for t, _ in start], [g for _, g in start])
    other, row = counts.fork(), [*start]
    for token in more:
        counts.add(*token)
        row.append(token)
    for _ in range(min(back, len(row))):
        counts.remove(*row.pop())
    for token in after:
        counts.add(*token)
        row.append(token)
    for held, tokens in ((counts, row), (other, start)):
        in_row = dict(zip(held.token_ids.tolist(), held.in_row.tolist(), strict=True))
        generated = dict(zip(held.token_ids.tolist(), held.generated.tolist(), strict=True))
        assert Counter(t for t, _ in tokens) == +Counter(in_row)
        assert Counter(t for t, is_generated in tokens if is_generated) == +Counter(generated)


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    rows = [[3, 3, 7, 49], [0, 1, 2, 3]]
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor(rows), logits.clone())
    sampler = greedy(repetition_penalty=1.3)
    ours = penalised(logits, [sampler.penalties] * 2, [TokenCounts(row, [False] * 4) for row in rows])
    assert torch.allclose(theirs, ours, rtol=1e-6)


def test_a_token_that_the_model_cannot_write_is_not_penalised() -> None:
    sampler = greedy(repetition_penalty=2.0)
    token_ids, _ = sampler.sample(torch.tensor([[4.0, 3.0]]), None, [TokenCounts([0, 900], [False] * 2)])
    assert int(token_ids[0]) == 1


def test_a_chain_counts_what_its_generators_wrote_but_not_what_was_added() -> None:
    model, sampler = random_model(), greedy(frequency_penalty=3.0)
    write = continuous(generate.text(model, sampler=sampler))
    state = write(write("the ", max_tokens=4) + " name", max_tokens=4)
    ids = state.token_ids[0, 0].tolist()
    prompt = len(model.tokenizer.encode("the ", add_special_tokens=True))
    first = ids[prompt : prompt + 4]
    for end in range(len(ids) - 4, len(ids)):
        logits = next_logits(model, ids[:end])[-1].double()
        free = [i for i, data in enumerate(model.tokenizer.token_bytes) if data] + sorted(model.eos_token_ids)
        masked = torch.full_like(logits, -torch.inf)
        masked[free] = logits[free]
        written = [*first, *ids[len(ids) - 4 : end]]
        assert ids[end] == int(plain_law(masked.tolist(), sampler.params, ids[:end], written).argmax())


def test_a_bias_for_a_token_that_the_model_does_not_have_is_refused_before_anything_runs() -> None:
    model = random_model()
    with pytest.raises(OptionError, match=f"ids below {model.vocab_size}.*got 99999"):
        generate.text(model, sampler=greedy(logit_bias={3: 1.0, 99999: 1.0}))
    with pytest.raises(OptionError, match="ids below 5"):
        greedy(logit_bias={5: 1.0}).sample(torch.zeros(1, 5), None)


@pytest.mark.parametrize("beyond", [2, 3])
def test_the_first_token_beyond_the_vocabulary_is_not_penalised_either(beyond: int) -> None:
    sampler = greedy(repetition_penalty=2.0, presence_penalty=0.5)
    logits = torch.tensor([[4.0, 3.0], [1.0, 2.0]])
    counts = [TokenCounts([0, beyond], [True] * 2), TokenCounts([beyond], [True])]
    assert penalised(logits, [sampler.penalties] * 2, counts).tolist() == [[1.5, 3.0], [1.0, 2.0]]
