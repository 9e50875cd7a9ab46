"""`guidance=`: every row is what whole forwards over both sequences and the formula by hand make of it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from outlines_cont import Guidance, SequenceState, continuous, engine_of, generate, models, policies, samplers
from outlines_cont.engine.guidance import guided_logits
from outlines_cont.errors import ContextLengthError, EmptyPrompt, IncompleteOutput, InvalidLogits, KVBudgetError, OptionError, UnknownOption
from outlines_cont.generation.options import Options
from outlines_cont.models import HuggingFaceModel
from outlines_cont.sampling.random_stream import RandomStream
from tests.fakes import BOS, EOS, FakeTokenizer, random_model, random_network, recurrent_network, scripted_model
from tests.oracle import ends_of, next_logits, rescored
from tests.plain_loop import PlainRow

GREEN = Guidance("red is green", 2.5)
PATTERN = "(yes|no|[a-d]{2,4}) of (red|green|blue)s?"


def by_hand(model: HuggingFaceModel, ids: Sequence[int], negative: Sequence[int], scale: float) -> torch.Tensor:
    """(V,) log-probabilities of what follows."""
    positive, other = (next_logits(model, one)[-1].log_softmax(-1) for one in (ids, negative))
    return (scale * positive + (1 - scale) * other).log_softmax(-1)


def greedy_by_hand(model: HuggingFaceModel, prompt: str, guidance: Guidance, count: int, *, written: Sequence[int] = ()) -> list[int]:
    """What is drawn behind a prompt and what was written already, without a constraint."""
    ids, negative = ids_of(model, prompt), ids_of(model, guidance.negative_prompt)
    found = list(written)
    text = [i for i, data in enumerate(model.tokenizer.token_bytes) if data is not None or i in model.eos_token_ids]
    for _ in range(count):
        logits = by_hand(model, [*ids, *found], [*negative, *found], guidance.scale)
        best = text[int(logits[text].argmax())]
        if best in model.eos_token_ids:
            break
        found.append(best)
    return found


def ids_of(model: HuggingFaceModel, prompt: str | Sequence[int]) -> list[int]:
    return model.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else list(prompt)


def piece(state: SequenceState, batch: int = 0, sample: int = 0) -> list[int]:
    row = state.rows[batch][sample]
    assert row.piece is not None
    return list(row.token_ids[row.piece.start :])


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let no model run rows together."""
    with mock.patch.object(HuggingFaceModel, "can_stack", mock.PropertyMock(return_value=False)):
        yield


@pytest.mark.parametrize("scale", [-1, 0, 0.5, 3.0])
def test_greedy_text_is_that_of_transformers(scale: float) -> None:
    model = random_model()
    prompt, negative = (ids_of(model, text) for text in ("the name", "red is green"))
    theirs = model.hugging_face.generate(  # type: ignore[operator]
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), device=model.device),
        max_new_tokens=9,
        do_sample=False,
        guidance_scale=scale,
        negative_prompt_ids=torch.tensor([negative], device=model.device),
        repetition_penalty=1.3,
        suppress_tokens=[i for i, data in enumerate(model.tokenizer.token_bytes) if data is None and i != EOS],
        eos_token_id=EOS,
    )
    generator = generate.text(model, sampler=samplers.greedy(repetition_penalty=1.3))
    state = continuous(generator)("the name", max_tokens=9, guidance=Guidance("red is green", scale))
    ended = [EOS] * (state.finish_reasons == [["stop"]])
    assert theirs[0, len(prompt) :].tolist() == piece(state) + ended


def test_log_probabilities_are_the_models_and_sampled_ones_those_of_the_guided_law() -> None:
    model = random_model()
    state = continuous(generate.text(model, sampler=samplers.multinomial(2)))("the name", rng=3, max_tokens=7, guidance=GREEN)
    negative = ids_of(model, GREEN.negative_prompt)
    text = [i for i, data in enumerate(model.tokenizer.token_bytes) if data is not None or i in model.eos_token_ids]
    for row in state.rows[0]:
        assert row.piece is not None
        start, ids = row.piece.start, list(row.token_ids)
        assert rescored(model, ids)[start:] == pytest.approx(row.logprobs[start:], abs=1e-9)
        assert row.weight == pytest.approx(sum(row.logprobs[start:]) + ends_of(row))
        for at in range(start, len(ids)):
            law = by_hand(model, ids[:at], [*negative, *ids[start:at]], GREEN.scale)[text].log_softmax(-1)
            assert float(law[text.index(ids[at])]) == pytest.approx(row.sampling_logprobs[at], abs=1e-9)


def test_both_sequences_run_in_the_same_forwards() -> None:
    model = random_model()
    with model.meter() as meter:
        continuous(generate.text(model))("the name", max_tokens=8, guidance=GREEN)
    prompts = len(ids_of(model, "the name")) + len(ids_of(model, GREEN.negative_prompt))
    assert (8, prompts + 2 * 7, 8) == (meter.forwards, meter.fed_tokens, meter.sampled_tokens)
    forced = generate.regex(model, "[ab] is the name of the [cd]")
    with model.meter() as meter:
        continuous(forced)("the name", guidance=GREEN)
    assert (meter.forwards, meter.sampled_tokens) == (2, 2)
    assert meter.recomputed_tokens == 0


def test_no_forward_has_more_tokens_than_the_engine_may_feed() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    engine_of(model).max_batch_tokens = 8 if model.can_branch else 0  # asked before, as that runs forwards of its own
    sizes, forward = [], model.forward

    def noted(input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        sizes.append(input_ids.numel())
        return forward(input_ids, *arguments)

    with mock.patch.object(model, "forward", noted):
        state = continuous(generate.text(model))(["the name"] * 7, max_tokens=3, guidance=GREEN)
    assert max(sizes) <= 8
    assert [greedy_by_hand(model, "the name", GREEN, 3)] * 7 == [piece(state, batch) for batch in range(7)]


def test_a_scale_of_one_feeds_no_negative_prompt() -> None:
    model = random_model()
    with model.meter() as plain:
        expected = continuous(generate.text(model))("the name", max_tokens=5)
    with model.meter() as meter:
        found = continuous(generate.text(model))("the name", max_tokens=5, guidance=Guidance("red", 1))
    assert (expected, plain.fed_tokens) == (found, meter.fed_tokens)


def test_a_piece_that_was_cut_goes_on_as_if_it_had_not_been() -> None:
    model = random_model()
    generator = continuous(generate.regex(model, PATTERN, sampler=samplers.multinomial()))
    whole = generator("the name", rng=1, guidance=GREEN)
    cut = generator("the name", rng=1, max_tokens=2, guidance=GREEN)
    held = cut.nbytes  # before another state continues in its memory
    with model.meter() as meter:
        found = generator.resume(cut, guidance=GREEN)
    assert (whole, whole.finish_reasons) == (found, found.finish_reasons)
    assert torch.allclose(whole.sampling_logprobs, found.sampling_logprobs, equal_nan=True)
    # The negative prompt and the piece so far are fed once more, as a state does not hold them.
    assert meter.fed_tokens >= len(ids_of(model, GREEN.negative_prompt)) + 2
    assert meter.recomputed_tokens == 0
    assert held < 1.25 * generator("the name", rng=1, max_tokens=2).nbytes


def recurrent_model() -> HuggingFaceModel:
    return models.from_transformers(recurrent_network(), FakeTokenizer())


def test_of_several_ways_around_a_ban_the_one_that_the_guided_law_prefers_is_taken() -> None:
    model, generator = random_model(), generate.text(random_model())
    prompts, guidance = ["the name", "a red", "of the", "yes", "green", "in"], Guidance("red is green", -1.5)
    free = continuous(generator)(prompts, max_tokens=8, guidance=guidance)
    texts = [model.tokenizer.decode(piece(free, batch)) for batch in range(len(prompts))]
    options = {"policies": [policies.ban([text[3:5] for text in texts], alternatives=4)], "max_tokens": 8}
    with model.meter() as meter:
        state = continuous(generator)(prompts, guidance=guidance, **options)
    assert meter.rewound_tokens
    assert meter.recomputed_tokens == 0
    negative = ids_of(model, guidance.negative_prompt), guidance.scale
    for batch, prompt in enumerate(prompts):
        ids = ids_of(model, prompt)
        steering = generator.policies(Options.of(options))
        stream = RandomStream(0)
        plain = PlainRow(model, ids, [False] * len(ids), steering, samplers.greedy(), stream, 8, negative=negative).run()
        row = state.rows[batch][0]
        assert row.piece is not None
        assert (plain.ids, plain.retries) == (piece(state, batch), row.piece.retries)


@pytest.mark.parametrize("family", ["mamba2", "llama", "gpt2", "mistral"])
def test_models_of_every_kind_write_what_whole_forwards_say(family: str) -> None:
    model = recurrent_model() if family == "mamba2" else models.from_transformers(random_network(family), FakeTokenizer())
    prompts, guidance = ["the name", "a"], [GREEN, Guidance("yes", -1)]
    expected = [greedy_by_hand(model, prompt, one, 3) for prompt, one in zip(prompts, guidance, strict=True)]
    generator = continuous(generate.text(model))
    state = generator(prompts, max_tokens=3, guidance=guidance)
    assert expected == [piece(state, 0), piece(state, 1)]
    with one_by_one(), model.meter() as meter:
        state = generator(prompts, max_tokens=3, guidance=guidance)
    assert expected == [piece(state, 0), piece(state, 1)]
    assert (meter.forwards, meter.recomputed_tokens) == (2 * 2 * 3, 0)


@pytest.mark.parametrize("make", [recurrent_model, random_model])
def test_rows_that_run_one_by_one_go_back_with_both_sequences(make: Callable[[], HuggingFaceModel]) -> None:
    model = make()
    generator = generate.text(model)
    banned = {"policies": [policies.ban([generator("the", max_tokens=3, guidance=GREEN)[1:2]])], "max_tokens": 4}
    with one_by_one():
        state = continuous(generator)("the", guidance=GREEN, **banned)
    ids, row = ids_of(model, "the"), state.rows[0][0]
    steering, negative = generator.policies(Options.of(banned)), (ids_of(model, GREEN.negative_prompt), GREEN.scale)
    plain = PlainRow(model, ids, [False] * len(ids), steering, samplers.greedy(), RandomStream(0), 4, negative=negative).run()
    assert row.piece is not None
    assert row.piece.retries
    assert (plain.ids, plain.retries) == (piece(state), row.piece.retries)


@dataclass
class Copied:
    """Guesses the next tokens of a text, now and then a wrong one."""

    ids: tuple[int, ...]

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        at = len(token_ids)
        guess = [*self.ids[at : at + 5]]
        return [*guess[:2], 70, *guess[3:]] if at % 3 == 0 else guess


@pytest.mark.parametrize("constraint", [None, "[a-z]{3,9} is the [a-z]{4,12}"])
def test_guessed_tokens_are_read_by_both_sequences_at_once_and_drawn_from_the_guided_law(
    constraint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, draw = random_model(), samplers.multinomial(temperature=1.5)
    monkeypatch.setattr(engine_of(model)._speculation._lengths, "least", 0.1)
    made = generate.regex(model, constraint, sampler=draw) if constraint else generate.text(model, sampler=draw)
    prompts, guidance = ["the name", "a"], [GREEN, None]
    with model.meter() as plain:
        expected = continuous(made)(prompts, rng=[1, 2], max_tokens=16, guidance=guidance)
    draft = Copied(expected.rows[0][0].token_ids)
    with model.meter() as meter:
        found = continuous(made)(prompts, rng=[1, 2], max_tokens=16, guidance=guidance, draft=draft)
        alone = continuous(made)("the name", rng=1, max_tokens=16, guidance=GREEN, draft=draft)
    assert [piece(expected, 0), piece(expected, 1)] == [piece(found, 0), piece(found, 1)]
    assert piece(expected) == piece(alone)
    assert torch.allclose(expected.sampling_logprobs, found.sampling_logprobs, atol=1e-6, equal_nan=True)
    assert meter.accepted_tokens > 8
    assert meter.recomputed_tokens == 0
    with model.meter() as meter:
        continuous(made)("the name", rng=1, max_tokens=16, guidance=GREEN, draft=draft)
    assert meter.forwards * 2 <= plain.forwards


def test_a_negative_prompt_that_many_rows_have_is_fed_once() -> None:
    model = random_model()
    guidance = Guidance("red is green, " * 6, 2)
    length = len(ids_of(model, guidance.negative_prompt))
    draw = samplers.multinomial(6)
    with model.meter() as plain:
        continuous(generate.text(model, sampler=draw))("the name", rng=1, max_tokens=2)
    with model.meter() as meter:
        state = continuous(generate.text(model, sampler=draw))("the name", rng=1, max_tokens=2, guidance=guidance)
    assert meter.fed_tokens - plain.fed_tokens == length + 6
    alone = continuous(generate.text(model))("the name", max_tokens=2, guidance=guidance)
    greedy = continuous(generate.text(model))(["the name"] * 3, max_tokens=2, guidance=guidance)
    assert [piece(alone)] * 3 == [piece(greedy, batch) for batch in range(3)]
    assert state.shape[:2] == (1, 6)


def test_a_long_negative_prompt_is_reused_by_the_next_call() -> None:
    network, guidance = random_network("llama"), Guidance("red is green, " * 20, 2)
    model = models.from_transformers(network, FakeTokenizer(), prefix_cache_bytes=2**20)
    length = len(ids_of(model, guidance.negative_prompt))
    generator = continuous(generate.text(model))
    fed = []
    for prompt in ("the", "name"):
        with model.meter() as meter:
            state = generator(prompt, max_tokens=3, guidance=guidance)
        fed.append(meter.fed_tokens)
        assert greedy_by_hand(model, prompt, guidance, 3) == piece(state)
    assert fed[0] - fed[1] == length - 1


def test_the_piece_ends_where_either_sequence_has_no_room_left() -> None:
    model = random_model()
    assert model.context_length == 256
    generator = continuous(generate.regex(model, "[a-z]{400}", force=False))
    for prompt, guidance, room in (
        ("the", Guidance([70] * 250, 2), 6),
        ("the", Guidance([70] * 255, 2), 1),
        (model.tokenizer.decode([70] * 249), Guidance("a", 2), 6),
    ):
        state = generator(prompt, guidance=guidance)
        assert (room, [["length"]]) == (len(piece(state)), state.finish_reasons)
    cut = generator("the", max_tokens=7, guidance=GREEN)
    state = generator.resume(cut, guidance=Guidance([70] * 250, 2))
    assert (cut, [["length"]]) == (state, state.finish_reasons)
    with pytest.raises(IncompleteOutput, match="context"):
        generator.generator("the", guidance=Guidance([70] * 250, 2))


def test_a_negative_prompt_that_cannot_be_fed_fails_before_anything_runs_or_its_entry_alone() -> None:
    model, generator = random_model(), generate.text(random_model())
    with pytest.raises(ContextLengthError, match="negative prompt of fewer than 256 tokens") as caught:
        generator("a", guidance=Guidance([70] * 256, 2), max_tokens=3)
    assert (caught.value.args[0].count("256"), engine_of(model).num_running) == (2, 0)
    with pytest.raises(OptionError, match=f"token ids from 0 to {model.vocab_size - 1} as `negative_prompt`, got 9999"):
        generator("a", guidance=Guidance([9999], 2), max_tokens=3)
    bare = models.from_transformers(random_network("llama"), FakeTokenizer(bos=False))
    with pytest.raises(EmptyPrompt, match="negative prompt"):
        generate.text(bare)("a", guidance=Guidance("", 2), max_tokens=3)
    assert ids_of(model, "") == [BOS]
    assert len(generator("a", guidance=Guidance("", 2), max_tokens=3))

    state = continuous(generator)(["a", "the"], guidance=[Guidance([70] * 999, 2), GREEN], max_tokens=3)
    assert isinstance(state.errors[0][0], ContextLengthError)
    assert state.finish_reasons == [["error"], ["length"]]
    alone = continuous(generator)("the", guidance=GREEN, max_tokens=3)
    assert piece(alone) == piece(state, 1)


def test_logits_that_are_no_numbers_behind_the_negative_prompt_fail_their_row_alone() -> None:
    model = scripted_model(lambda ids: {65: math.nan if 71 in ids else 1.0})
    generator = continuous(generate.regex(model, "[A-E]", force=False))
    state = generator(["a", "b"], guidance=[Guidance([71], 2), Guidance([72], 2)])
    assert isinstance(state.errors[0][0], InvalidLogits)
    assert "negative prompt" in str(state.errors[0][0])
    assert state.errors[1] == [None]


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, -2.0])
def test_a_minus_infinity_is_the_models_and_where_only_the_negative_prompt_has_it_nothing_is_guided(scale: float) -> None:
    positive, negative = torch.tensor([2.0, 1.0, -math.inf, -math.inf]), torch.tensor([0.0, -math.inf, 1.0, -math.inf])
    found = guided_logits(positive, negative, scale)
    own, other = positive.log_softmax(-1), negative.log_softmax(-1)
    assert found.tolist() == pytest.approx([float(scale * own[0] + (1 - scale) * other[0]), float(own[1]), -math.inf, -math.inf])

    model = scripted_model(lambda ids: {66: -math.inf, 67: 1.0} if 90 in ids else {67: -math.inf, 68: 2.0})
    draw = samplers.multinomial(60)
    state = continuous(generate.regex(model, "[?-E]", sampler=draw, force=False))("W", rng=2, guidance=Guidance([91], scale))
    assert state.errors == [[None] * 60]
    assert "?" not in state.values[0]


def test_what_is_no_guidance_is_refused() -> None:
    model = random_model()
    for scale in (math.nan, math.inf, -math.inf, "2", True, None):
        with pytest.raises(OptionError, match="expected a finite number as `scale`, got") as caught:
            Guidance("a", scale)  # type: ignore[arg-type]
        assert caught.value.option == "scale"
    for prompt in (3, None, b"a", [], ["a"], [1.5]):
        with pytest.raises(OptionError, match="as `negative_prompt`, got"):
            Guidance(prompt, 2)  # type: ignore[arg-type]
    generator = generate.text(model)
    for given in ("a", 2.0, ["a"], [GREEN, 3]):
        with pytest.raises(OptionError, match="expected `Guidance"):
            generator("a", guidance=given, max_tokens=2)
    with pytest.raises(OptionError, match="for each of 1 batch entries as `guidance`, got a list of 2"):
        generator("a", guidance=[GREEN, None], max_tokens=2)
    with pytest.raises(UnknownOption, match=r"Write `guidance=Guidance"):
        generator("a", guidance_scale=2.0)
    beams = generate.text(model, sampler=samplers.beam_search(2))
    with pytest.raises(OptionError, match="samplers.best_of"):
        beams("a", guidance=GREEN, max_tokens=2)
    assert beams("a", guidance=Guidance("red", 1), max_tokens=2)


def test_a_guidance_is_a_value() -> None:
    ids = Guidance(np.array([3, 4]), 2)
    assert ids == Guidance([3, 4], 2.0) == Guidance(torch.tensor([3, 4]), 2)
    assert hash(ids) == hash(Guidance((3, 4), 2))
    assert repr(GREEN) == "Guidance(negative_prompt='red is green', scale=2.5)"


def budgeted(tokens: int) -> HuggingFaceModel:
    per_token = 2 * 2 * 2 * 8 * 8
    return models.from_transformers(random_network("llama"), FakeTokenizer(), kv_budget_bytes=tokens * per_token)


def test_rows_for_whose_two_sequences_there_is_no_room_wait_and_one_that_is_too_large_fails_alone() -> None:
    model = budgeted(140)
    prompt, guidance = "the name of the rose " * 2, Guidance("red green blue " * 2, 2)
    generator = continuous(generate.text(model))
    state = generator([prompt] * 6, max_tokens=4, guidance=guidance)
    expected = continuous(generate.text(random_model()))(prompt, max_tokens=4, guidance=guidance)
    assert [piece(expected)] * 6 == [piece(state, batch) for batch in range(6)]
    state = generator(["a", "a"], max_tokens=4, guidance=[Guidance([70] * 200, 2), GREEN])
    assert isinstance(state.errors[0][0], KVBudgetError)
    assert state.errors[1] == [None]
    del state
    gc.collect()
    assert model.kv_store.nbytes == 0


def test_a_row_frees_what_its_negative_prompt_has_taken() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    state = continuous(generate.text(model))(["the name", "a"], max_tokens=4, guidance=GREEN)
    plain = models.from_transformers(random_network("llama"), FakeTokenizer())
    other = continuous(generate.text(plain))(["the name", "a"], max_tokens=4)
    assert state.nbytes < 1.25 * other.nbytes
    del state
    assert model.kv_store.nbytes == 0
