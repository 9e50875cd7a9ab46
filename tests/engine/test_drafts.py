"""`draft=`: guesses change how many forwards there are, and nothing else."""

from __future__ import annotations

import gc
import itertools
import random
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Branch, Policy, RowView, SequenceState, TokenSet, continuous, engine_of, generate, models, policies, samplers
from outlines_cont.drafts.lookup import NgramIndex
from outlines_cont.engine.drafting.costs import DraftingCosts, ForwardCosts
from outlines_cont.engine.drafting.lengths import LONGEST, DraftLengths, Graded, Probing, StepCosts
from outlines_cont.engine.drafting.row_draft import DraftRequest, RowDraft, set_lengths
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DraftWarning, OptionError, UnsupportedModel, VocabularyMismatch
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.compose import PolicyState
from tests.fakes import EOS, VOCAB_SIZE, FakeTokenizer, random_model, random_network


class Knows:
    """Proposes what some text goes on with, and every so often something else."""

    def __init__(self, texts: Sequence[Sequence[int]], *, wrong_every: int = 0) -> None:
        self.texts, self.wrong_every, self.calls = [[*text] for text in texts], wrong_every, 0

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        self.calls += 1
        for text in self.texts:
            if text[: len(token_ids)] == [*token_ids]:
                rest = text[len(token_ids) :]
                return [70 if self.wrong_every and (i + 1) % self.wrong_every == 0 else t for i, t in enumerate(rest)]
        return []


class Proposing:
    """Returns whatever it is told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, token_ids: Sequence[int]) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


def written(state: SequenceState) -> list[Any]:
    return [(row.token_ids, row.kinds, row.finish_reason, row.stream, row.value) for group in state.rows for row in group]


def rows_of(state: SequenceState) -> list[tuple[int, ...]]:
    return [row.token_ids for group in state.rows for row in group]


def a_model(seed: int = 0) -> HuggingFaceModel:
    return models.from_transformers(random_network("llama", seed=seed), FakeTokenizer())


def steady(model: HuggingFaceModel, monkeypatch: pytest.MonkeyPatch) -> HuggingFaceModel:
    """Have every forward of a model take a second, and all else no time, so that the lengths of guesses are the same always."""
    forward, seconds = model.forward, [0.0]

    def timed(*arguments: Any) -> torch.Tensor:
        seconds[0] += 1.0
        return forward(*arguments)

    monkeypatch.setattr(model, "forward", timed)
    engine_of(model)._speculation.clock = lambda: seconds[0]
    for _ in range(3):  # a plain forward is measured first
        generate.text(model)("the", max_tokens=3, draft=Proposing([]))
    return model


# -- the law -----------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "greedy": samplers.greedy(),
    "multinomial": samplers.multinomial(2, temperature=1.5, top_p=0.95),
    "penalties": samplers.multinomial(2, temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.4),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("kind", ["lookup", "same model", "other model", "knows", "half knows"])
def test_a_text_is_token_for_token_the_one_without_a_draft(name: str, kind: str) -> None:
    model = random_model()
    generator = continuous(generate.text(model, sampler=SAMPLERS[name]))
    plain = generator(["the name", "a red"], max_tokens=24, rng=5)
    draft: Any = {"lookup": "lookup", "same model": a_model(), "other model": a_model(1)}.get(kind)
    if draft is None:
        draft = Knows(rows_of(plain), wrong_every=3 if kind == "half knows" else 0)
    with model.meter() as meter:
        drafted = generator(["the name", "a red"], max_tokens=24, rng=5, draft=draft)
    assert written(plain) == written(drafted)
    for group, others in zip(plain.rows, drafted.rows, strict=True):
        for row, other in zip(group, others, strict=True):
            assert row.logprobs == pytest.approx(other.logprobs, abs=1e-9)
            assert row.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-9)
    assert meter.accepted_tokens <= meter.proposed_tokens
    if kind in ("same model", "knows"):
        assert meter.proposed_tokens == meter.accepted_tokens > 0
        assert meter.forwards < 24


def test_what_is_said_of_tokens_is_the_same_in_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    model = steady(a_model(), monkeypatch)
    generator = generate.text(model, sampler=samplers.multinomial(temperature=1.5))
    plain = [*generator.stream("the name", events=True, top=2, rng=3, max_tokens=20)]
    text = continuous(generator)("the name", rng=3, max_tokens=20)
    draft = Knows(rows_of(text), wrong_every=2)
    events = [*generator.stream("the name", events=True, top=2, rng=3, max_tokens=20, draft=draft)]
    assert "".join(event.text for event in plain) == "".join(event.text for event in events)
    tokens = [[token for event in run for token in event.token_ids] for run in (plain, events)]
    assert tokens[0] == tokens[1]
    tops = [[[i for i, _ in top] for event in run for top in event.top] for run in (plain, events)]
    assert tops[0] == tops[1]
    assert len(events) < len(plain)
    assert (sum(e.proposed_tokens for e in plain), sum(e.saved_forwards for e in plain)) == (0, 0)
    proposed, accepted = (sum(getattr(e, f"{name}_tokens") for e in events) for name in ("proposed", "accepted"))
    assert 0 < accepted < proposed
    assert accepted <= sum(e.saved_forwards for e in events) <= 20


def test_forced_text_joins_a_guess_and_is_scored_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = steady(a_model(), monkeypatch)
    generator = continuous(generate.regex(model, "[ab](: red green blue [ab]){5}", end="eos"))
    plain = generator("the name")
    with model.meter() as meter:
        drafted = generator("the name", draft=Knows(rows_of(plain)))
    (row,), (other,) = plain.rows[0], drafted.rows[0]
    assert (row.token_ids, row.kinds) == (other.token_ids, other.kinds)
    assert row.logprobs == pytest.approx(other.logprobs, abs=1e-9)
    assert meter.forced_tokens > 20
    assert meter.proposed_tokens == meter.accepted_tokens == 5
    assert meter.forwards <= 2


def test_a_token_without_a_choice_is_guessed_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model = steady(a_model(), monkeypatch)
    generator = continuous(generate.regex(model, "[ab]xyzuvw[ab]", force=False))
    plain = generator("the name", rng=0)
    with model.meter() as meter:
        drafted = generator("the name", rng=0, draft=Knows([rows_of(plain)[0][:4]]))
    assert written(plain) == written(drafted)
    assert (meter.forwards, meter.proposed_tokens, meter.accepted_tokens) == (1, 7, 7)


# -- where it is taken -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["greedy", "multinomial"])
def test_what_a_right_guess_brings_is_drawn_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward draws once, for its row and for all places behind the guess."""
    plain = continuous(generate.text(a_model(), sampler=SAMPLERS[name]))("the cat", max_tokens=24, rng=3)
    model, draws = steady(a_model(), monkeypatch), list[int]()
    masked = Masker.masked

    def counted(masker: Masker, logits: torch.Tensor, masks: Sequence[TokenSet]) -> torch.Tensor:
        draws.append(len(masks))
        return masked(masker, logits, masks)

    monkeypatch.setattr(Masker, "masked", counted)
    knows = Knows(rows_of(plain))
    with model.meter() as meter:
        state = continuous(generate.text(model, sampler=SAMPLERS[name]))("the cat", max_tokens=24, rng=3, draft=knows)
    assert rows_of(state) == rows_of(plain)
    assert meter.saved_forwards >= 8
    assert len(draws) <= meter.forwards + 1  # what comes last has no place behind it in any guess
    assert sum(draws) >= meter.sampled_tokens


class Cooling(policies.Policy[int]):
    """Every third token is the most probable one, which takes no random number, whatever the sampler."""

    def initial(self, row: Any) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def branches(self, state: int, row: Any) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.all, temperature=None if state % 3 else 0.0)]


def test_tokens_that_take_no_random_number_do_not_shift_those_of_draws_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = samplers.multinomial(2, temperature=1.5)
    plain = continuous(generate.text(a_model(), sampler=sampler))("the cat", max_tokens=30, rng=5, policies=[Cooling()])
    model = steady(a_model(), monkeypatch)
    knows = Knows(rows_of(plain), wrong_every=7)
    write = continuous(generate.text(model, sampler=sampler))
    with model.meter() as meter:
        state = write("the cat", max_tokens=30, rng=5, policies=[Cooling()], draft=knows)
    assert written(state) == written(plain)
    assert meter.saved_forwards >= 20


def test_every_call_takes_a_draft() -> None:
    model = random_model()
    generator = generate.regex(model, "[ab]{9}", draft="lookup", sampler=samplers.multinomial())
    plain = generate.regex(model, "[ab]{9}", sampler=samplers.multinomial())
    wanted = plain("a", rng=1)
    assert wanted == generator("a", rng=1) == plain("a", rng=1, draft="lookup") == generator("a", rng=1, draft=None)
    assert "".join(generator.stream("a", rng=1)) == wanted
    state = continuous(generator)("a", rng=1, max_tokens=3)
    assert continuous(generator).resume(state).values == [[wanted]]
    assert continuous(plain).resume(state, draft="lookup").values == [[wanted]]
    stream = continuous(plain).stream("a", rng=1, draft="lookup")
    assert "".join(event.text for event in stream) == wanted


def test_a_search_guesses_nothing() -> None:
    model = random_model()
    generator = generate.choice(model, ["red", "green"], sampler=samplers.beam_search(2), draft="lookup")
    with model.meter() as meter:
        generator("the")
    assert meter.proposed_tokens == 0


@pytest.mark.parametrize("draft", ["look", 3, object(), Knows, b"lookup", ["lookup"]])
def test_what_guesses_nothing_is_refused_at_once(draft: Any) -> None:
    model = random_model()
    for call in (lambda: generate.text(model, draft=draft), lambda: generate.text(model)("a", draft=draft)):
        with pytest.raises(OptionError, match="'lookup', a model such as .* or an object with `propose") as caught:
            call()
        assert caught.value.option == "draft"


class OtherTokenizer(FakeTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.token_bytes = (*self.token_bytes[:70], b"other", *self.token_bytes[71:])


def test_a_model_with_other_tokens_is_refused() -> None:
    other = models.from_transformers(random_network("llama"), OtherTokenizer())
    with pytest.raises(VocabularyMismatch, match=r"1 ids differ, the first of them 70: b'C', and b'other' in the draft"):
        generate.text(random_model(), draft=other)


def test_a_model_whose_logits_are_wider_or_narrower_may_guess() -> None:
    """Models of one family are padded differently: ids without a token mean nothing."""
    config = random_network("llama").config
    config.vocab_size = VOCAB_SIZE + 11
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    wider = models.from_transformers(wide, FakeTokenizer())
    plain = generate.text(random_model())("the", max_tokens=12)
    assert plain == generate.text(random_model(), draft=wider)("the", max_tokens=12)
    plain = generate.text(wider)("the", max_tokens=12)
    assert plain == generate.text(wider, draft=random_model())("the", max_tokens=12)


def test_a_cache_that_cannot_be_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = a_model()
    monkeypatch.setattr(recurrent, "is_recurrent", True)
    with pytest.raises(UnsupportedModel, match="cache can be cut, to use `draft`"):
        generate.text(recurrent, draft="lookup")
    with pytest.raises(UnsupportedModel, match="cache can be cut as `draft`"):
        generate.text(random_model(), draft=recurrent)


# -- bad drafts --------------------------------------------------------------------------------------------------------


def shown(answer: object) -> str:
    return getattr(answer, "__name__", repr(answer))  # no address, which differs between processes


def endless() -> Iterator[int]:
    return itertools.repeat(65)


def breaking() -> Iterator[int]:
    if EOS:
        raise RuntimeError("no more")
    yield 65


@pytest.mark.parametrize(
    "answer", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), None, 7, "abc", ["a"], [1.5], [None], [True], breaking], ids=shown
)
def test_a_draft_that_fails_is_let_go_with_one_warning(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Steady, so that a guess is asked for, however busy the machine is.
    generator = generate.text(steady(a_model(), monkeypatch))
    wanted = generator(["the", "a"], max_tokens=8)
    with pytest.warns(DraftWarning, match="the text is written without a draft") as told:
        assert wanted == generator(["the", "a"], max_tokens=8, draft=Proposing(answer))
    assert len(told) == 1
    assert __file__ == told[0].filename  # the line of the user
    assert "engine.test_drafts.Proposing" in str(told[0].message)
    if answer is breaking:
        assert f"RuntimeError: no more, in {__file__!r}, line" in str(told[0].message)


@pytest.mark.parametrize("answer", [[], [-1], [10**9], [VOCAB_SIZE], [EOS], [0], (), endless, range(300)], ids=shown)
def test_a_guess_that_cannot_come_is_let_go(answer: Any) -> None:
    generator = generate.text(random_model())
    wanted = generator("the", max_tokens=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wanted == generator("the", max_tokens=8, draft=Proposing(answer))


def test_a_model_that_fails_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = a_model(1)
    generator = generate.text(steady(a_model(), monkeypatch))
    wanted = generator("the", max_tokens=8)
    monkeypatch.setattr(draft, "forward", lambda *_: 1 / 0)
    with pytest.warns(DraftWarning, match="ZeroDivisionError"):
        assert wanted == generator("the", max_tokens=8, draft=draft)
    gc.collect()
    assert draft.kv_store.nbytes == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_more_is_guessed_than_there_is_room_for(max_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = steady(a_model(), monkeypatch)
    generator = continuous(generate.text(model))
    whole = generator("the", max_tokens=12)
    with model.meter() as meter:
        state = generator("the", max_tokens=max_tokens, draft=Knows(rows_of(whole)))
    assert rows_of(state)[0] == rows_of(whole)[0][: len(rows_of(state)[0])]
    assert (meter.forwards, meter.proposed_tokens, meter.accepted_tokens) == (1, max_tokens - 1, max_tokens - 1)
    assert meter.fed_tokens == len(rows_of(state)[0]) - 1


def test_a_text_goes_to_the_end_of_the_context() -> None:
    config = random_network("llama").config
    config.max_position_embeddings = 20
    network = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    model = models.from_transformers(network, FakeTokenizer(eos=False))
    model.eos_token_ids = frozenset()
    generator = continuous(generate.text(model))
    plain = generator("the", max_tokens=100, rng=0)
    assert len(rows_of(plain)[0]) == 20
    for draft in (Knows([[*rows_of(plain)[0], 65, 66, 67]]), model, "lookup"):
        assert written(plain) == written(generator("the", max_tokens=100, rng=0, draft=draft))


# -- other features ----------------------------------------------------------------------------------------------------


def test_keys_and_values_of_guesses_are_let_go() -> None:
    model, draft = a_model(), a_model(1)
    generator = generate.text(model, sampler=samplers.multinomial(3))
    generator(["the name", "a"], rng=1, max_tokens=12, draft=draft)
    stream = generator.stream("the name", rng=1, max_tokens=12, draft=draft)
    for _ in range(3):
        next(stream)
    del stream
    gc.collect()
    assert (model.kv_store.nbytes, draft.kv_store.nbytes) == (0, 0)


def test_a_draft_counts_in_its_own_meter() -> None:
    model, draft = a_model(), a_model(1)
    with model.meter() as ours, draft.meter() as its:
        generate.text(model)("the name", max_tokens=12, draft=draft)
    assert ours.forwards > 0
    assert its.forwards > 0
    assert (its.sampled_tokens, its.proposed_tokens) == (0, 0)
    assert engine_of(model).stats.work.proposed_tokens == ours.proposed_tokens > 0


def test_a_copy_ends_where_its_next_token_is_unlikely(monkeypatch: pytest.MonkeyPatch) -> None:
    model = steady(a_model(), monkeypatch)
    prompt = "the name of the name of the name of the"
    wanted = generate.text(model)(prompt, max_tokens=24)
    proposed = []
    for least in (0.0, 0.55, 1.1):
        monkeypatch.setattr(StepCosts, "least_chance", lambda *_, least=least: least)
        with model.meter() as meter:
            assert generate.text(model)(prompt, max_tokens=24, draft="lookup") == wanted
        proposed.append(meter.proposed_tokens)
    # At the last, only drafts that measure the rates are made.
    assert proposed[0] > proposed[1] > proposed[2]


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_the_best_width_has_the_most_tokens_per_second() -> None:
    lengths, drafting = DraftLengths("cpu"), DraftingCosts()
    assert StepCosts(lengths, 1, 1).width(drafting, [(1.0, 1)]) == 0  # nothing was measured
    for _ in range(3):
        for width in (1, 2, 4, 8, 17):
            lengths.forwards.note(width, 1.0 + 0.05 * width)
    assert StepCosts(lengths, 1, 1).width(drafting, [(1.0, 1)]) == 1 + LONGEST
    assert StepCosts(lengths, 1, 1).width(drafting, [(0.0, 1)]) == 0
    half = StepCosts(lengths, 1, 1).width(drafting, [(0.5, 1)])
    assert 2 <= half <= 6
    drafting.note(1, 0.4)
    assert StepCosts(lengths, 1, 1).width(drafting, [(0.5, 1)]) < half
    for number in (1, 2, 6):
        drafting.note(number, 0.4 * number)
    assert 1 < StepCosts(lengths, 1, 1).width(drafting, [(0.9, 1)]) < LONGEST


def test_a_width_is_chosen_for_all_rows_of_a_batch() -> None:
    """What pays for one row alone does not for one of eight, as all are padded; room that others leave costs nothing."""
    lengths, free = DraftLengths("cpu"), DraftingCosts()
    for _ in range(3):
        for tokens in (1, 2, 8, 16, 24, 40, 64, 136):
            lengths.forwards.note(tokens, 1.0 + 0.1 * tokens)
    assert StepCosts(lengths, 1, 1).width(free, [(0.7, 1)]) > 2
    assert StepCosts(lengths, 8, 1).width(free, [(0.7, 1)]) == 0
    assert StepCosts(lengths, 8, 1).width(free, [(0.9, 1)] * 8) > 2
    # One row has three tokens to feed anyway, so that two are free in the others.
    assert StepCosts(lengths, 8, 3).width(free, [(0.7, 1)] * 7) >= 3


def test_a_draft_that_is_unsure_stops_earlier() -> None:
    lengths, draft = DraftLengths("cpu"), RowDraft(_Silent())
    for _ in range(3):
        for width in (1, 2, 4, 8, 17):
            lengths.forwards.note(width, 1.0 + 0.05 * width)
        draft.record.costs.note(1, 0.3)
        draft.record.costs.note(4, 1.2)
    costs = StepCosts(lengths, 1, 1)
    assert costs.width(draft.record.costs, [(0.9, 1)]) > 2
    assert costs.pays(draft.record.costs, 3, [0.9])
    assert not costs.pays(draft.record.costs, 3, [0.3])
    assert 0.3 < costs.least_chance(draft.record.costs, 1) < 0.9
    assert costs.least_chance(draft.record.costs, 2) == costs.least_chance(draft.record.costs, 1) / 2
    for _ in range(50):  # what is right of one grade says something of its kind, and nothing of the other grades
        draft.note(Graded("model", 4), True)
        draft.note(Graded("model", 0), False)
    shares = [draft.share(kind, 0.5) for kind in (Graded("model", 4), Graded("model", 0), "model", Graded("model", 2))]
    assert shares[0] > 0.95 > 0.7 > shares[2] > 0.3 > 0.05 > shares[1]
    assert shares[3] == 0.5
    assert draft.chance([Graded("model", 4), None, Graded("model", 2)]) == pytest.approx(shares[0] * 0.5)


def test_where_nothing_is_right_a_token_is_drafted_in_every_sixteenth_forward() -> None:
    probing, tries = Probing(), []
    for step in range(1, 200):
        if length := probing.length(0.0):
            tries.append((step, length))
            probing.note(False)
    assert [step for step, _ in tries[:5]] == [4, 12, 28, 44, 60]
    assert {length for _, length in tries} == {1}


@pytest.mark.parametrize(("cost", "longest"), [(0.1, 16), (0.5, 25), (1.0, 50), (9.0, 64)])
def test_dear_tries_take_a_fiftieth_of_the_time_and_are_never_given_up(cost: float, longest: int) -> None:
    probing, tries = Probing(), []
    for step in range(1, 1000):
        if probing.length(0.0, cost):
            tries.append(step)
            probing.note(False)
    assert {later - earlier for earlier, later in pairwise(tries[6:])} == {longest}


def test_a_probe_that_is_accepted_against_expectation_is_repeated_at_once() -> None:
    probing = Probing()
    lengths = [probing.length(0.1) for _ in range(4)]
    for share in (0.2, 0.4, 0.9, 0.9):
        probing.note(True)
        lengths.append(probing.length(share))
    assert lengths == [0, 0, 0, 1, 1, 1, 0, 0]
    while not (length := probing.length(0.9)):
        pass
    assert length == 6  # the sixth is accepted in half of the cases


def test_the_first_draft_token_and_the_further_ones_are_told_apart() -> None:
    costs, draw = DraftingCosts(), random.Random(2)
    assert costs.seconds(5) == 0.0
    costs.note(2, 9.0)
    assert (costs.first, costs.further) == pytest.approx((6.0, 3.0))
    for _ in range(60):
        number = draw.choice([1, 2, 4, 8])
        late = 40.0 if draw.random() < 0.1 else 0.0  # an interrupt now and then
        costs.note(number, 5.0 + 2.5 * (number - 1) + late)
    assert costs.first == pytest.approx(5.0, rel=0.15)
    assert costs.further == pytest.approx(2.5, rel=0.15)
    assert costs.seconds(0) == 0.0


class Machine:
    """Takes time for forwards and drafts of one row as told, and accepts tokens with a probability."""

    def __init__(self, share: float, costs: Sequence[float], seed: int) -> None:
        self.share, self.draw = share, random.Random(seed)
        self.plain, self.wide, self.token, self.first, self.further, self.noise = costs

    def forward(self, width: int) -> float:
        return self.plain if width == 1 else self.plain * self.wide + self.token * width

    def drafting(self, length: int) -> float:
        return self.first + self.further * (length - 1) if length else 0.0

    def rate(self, length: int) -> float:
        """Return the expected tokens per second with drafts of a fixed length."""
        tokens = sum(self.share**count for count in range(length + 1))
        return tokens / (self.forward(1 + length) + self.drafting(length))

    def run(self, num_tokens: int) -> float:
        """Return the tokens per second with the lengths that are chosen from what was measured."""
        measured, draft, row = DraftLengths("cpu"), RowDraft(_Silent()), StandIn()
        draft.record = measured.record(draft.drafter)
        written, seconds = 0, 0.0
        while written < num_tokens:
            request = DraftRequest(row, draft, StepCosts(measured, 1, 1))  # type: ignore[arg-type]
            wanted = set_lengths([request], [draft.share("any", 0.7)])
            length = request.length if wanted else 0
            if length:
                taken = self.drafting(length) * self._slow()
                draft.record.costs.note(length, taken)
                seconds += taken
            taken = self.forward(1 + length) * self._slow()
            measured.forwards.note(1 + length, taken)
            seconds += taken
            written += 1
            for _ in range(length):
                is_right = self.draw.random() < self.share
                draft.note("any", is_right)
                if not is_right:
                    break
                written += 1
        return written / seconds

    def _slow(self) -> float:
        """Return a factor of noise with outliers, as those of a busy machine."""
        return self.draw.uniform(1.0, 1.0 + self.noise) * (4.0 if self.draw.random() < 0.03 * bool(self.noise) else 1.0)


class StandIn:
    num_pending = 1
    has_hint = False


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    share=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.96, 1.0]),
    wide=st.floats(1.0, 1.5),
    token=st.floats(0.0, 0.4),
    first=st.floats(0.01, 0.6),
    further=st.floats(0.01, 0.5),
    seed=st.integers(0, 99),
)
def test_what_is_chosen_is_about_as_fast_as_the_best_fixed_length(
    share: float, wide: float, token: float, first: float, further: float, seed: int
) -> None:
    machine = Machine(share, (1.0, wide, token, first, further, 0.0), seed)
    best = max(machine.rate(length) for length in range(LONGEST + 1))
    assert machine.run(3000) >= 0.75 * best


@given(
    st.lists(st.floats(0.0, 0.99), min_size=1, max_size=3), st.integers(1, 3), st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(0.0, 0.5)
)
def test_no_width_is_chosen_without_a_look_where_each_would_lose(
    shares: list[float], num_pending: int, token: float, drafting: float, draw: float
) -> None:
    measured, drafted = DraftLengths("cpu"), DraftingCosts()
    for num_tokens in [*range(1, 80)] * 3:
        measured.forwards.note(num_tokens, 1.0 + token * num_tokens)
    measured.draws.note(draw)
    drafted.note(1, drafting)
    costs = StepCosts(measured, len(shares), num_pending)
    if not costs.width(drafted, [(share, num_pending) for share in shares]):
        plain = measured.forwards.seconds(len(shares) * num_pending)
        for length in range(1, 5):  # the search ends there, if none of these pays
            gains = [sum(share**count for count in range(1, length + 1)) for share in shares]
            wide = measured.forwards.seconds(len(shares) * (num_pending + length))
            seconds = wide + max(gains) * draw + drafted.seconds(length)
            assert (len(shares) + sum(gains)) / seconds <= 1.03 * len(shares) / plain * (1 + 1e-9)


def test_costs_between_what_was_measured_are_on_a_line() -> None:
    costs = ForwardCosts("cpu")
    costs.note(1, 1.0)
    assert costs.seconds(25) == pytest.approx(1.0 * (24 + 25) / (24 + 1), rel=0.05)
    costs.note(9, 3.0)
    assert costs.seconds(5) == pytest.approx(2.0)
    for seconds in (2.0, 9.0, 2.0):
        costs.note(1, seconds)
    assert costs.seconds(1) == pytest.approx(2.0)
    costs.note(100_000, 50.0)
    assert costs.num_below(10**6) == 5


class _Silent:
    has_warned = False

    def memory(self) -> NgramIndex:
        return NgramIndex()

    def draft(self, requests: object) -> None: ...

    def keep(self, memories: object) -> None: ...


def test_what_is_noted_of_a_guess_is_the_kind_of_its_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess may end in tokens that the constraint forces, of which nothing is to be learned."""
    noted: list[Any] = []
    note = RowDraft.note

    def listens(self: RowDraft, kind: Any, is_right: bool) -> None:
        noted.append(kind)
        note(self, kind, is_right)

    monkeypatch.setattr(RowDraft, "note", listens)
    model = steady(a_model(), monkeypatch)
    write = continuous(generate.regex(model, "([xy]{1,2}-of-the-){5}"))
    plain = write("the name", rng=1)
    noted.clear()
    for wrong_every in (0, 3):
        draft = Knows(rows_of(plain), wrong_every=wrong_every)
        assert written(plain) == written(write("the name", rng=1, draft=draft))
    assert noted
    assert None not in noted


def test_states_of_policies_behind_a_right_guess_are_those_of_the_lookahead() -> None:
    asked: list[int] = []

    class Listing(Policy[tuple[int, ...]]):
        def initial(self, row: RowView) -> tuple[int, ...]:
            return ()

        def branches(self, state: tuple[int, ...], row: RowView) -> list[Branch]:
            return [Branch(sample_mask=TokenSet.all)]

        def advance(self, state: tuple[int, ...], token_id: int) -> tuple[int, ...]:
            asked.append(token_id)
            return (*state, token_id)

    state = PolicyState(Listing(), None)  # type: ignore[arg-type]
    ahead = state.at(state.stack, 0)
    for token_id in (1, 2, 3):
        ahead.append(token_id)
    state.expect([1, 2, 3], ahead)
    for token_id in (1, 5, 3):
        state.append(token_id)
    assert (asked, state.stack[-1]) == ([1, 2, 3, 5, 3], (1, 5, 3))
    state.expect([4], ahead)
    state.rewind(1, None)
    state.append(4)
    assert (asked, state.stack[-1]) == ([1, 2, 3, 5, 3, 4], (1, 5, 4))
