"""`draft=`: guesses change how many forwards there are, and nothing else."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import Branch, Policy, RowView, SequenceState, TokenSet, continuous, engine_of, generate, models, policies, samplers
from outlines_cont.drafts.lookup import NgramIndex
from outlines_cont.engine.drafting.lengths import LONGEST, DraftLengths, Graded
from outlines_cont.engine.drafting.row_draft import DraftRequest, RowDraft, set_lengths
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import DraftWarning, OptionError, UnsupportedModel, VocabularyMismatch
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.policy_states import PolicyStates
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


def eager(model: HuggingFaceModel) -> HuggingFaceModel:
    """Have drafts of twelve tokens from the first one on."""
    engine_of(model)._speculation._lengths.least = 0.01
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
    plain = generator(["the name", "a red"], max_tokens=16, rng=5)
    draft: Any = {"lookup": "lookup", "same model": a_model(), "other model": a_model(1)}.get(kind)
    if draft is None:
        draft = Knows(rows_of(plain), wrong_every=3 if kind == "half knows" else 0)
    with model.meter() as meter:
        drafted = generator(["the name", "a red"], max_tokens=16, rng=5, draft=draft)
    assert written(plain) == written(drafted)
    for group, others in zip(plain.rows, drafted.rows, strict=True):
        for row, other in zip(group, others, strict=True):
            assert row.logprobs == pytest.approx(other.logprobs, abs=1e-9)
            assert row.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-9)
    assert meter.accepted_tokens <= meter.proposed_tokens
    if kind in ("same model", "knows"):
        assert meter.proposed_tokens == meter.accepted_tokens > 0
        assert meter.forwards < 16


def test_what_is_said_of_tokens_is_the_same_in_a_stream() -> None:
    model = a_model()
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


def test_forced_text_joins_a_guess_and_is_scored_by_it() -> None:
    model = eager(a_model())
    generator = continuous(generate.regex(model, "[ab](: red green blue [ab]){5}", end="eos"))
    plain = generator("the name")
    with model.meter() as meter:
        drafted = generator("the name", draft=Knows(rows_of(plain)))
    (row,), (other,) = plain.rows[0], drafted.rows[0]
    assert (row.token_ids, row.kinds) == (other.token_ids, other.kinds)
    assert row.logprobs == pytest.approx(other.logprobs, abs=1e-9)
    assert meter.forced_tokens > 20
    assert meter.proposed_tokens == meter.accepted_tokens == 6
    assert meter.forwards <= 2


def test_a_token_without_a_choice_is_guessed_for_free() -> None:
    model = a_model()
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
    model, draws = a_model(), list[int]()
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


def test_tokens_that_take_no_random_number_do_not_shift_those_of_draws_ahead() -> None:
    sampler = samplers.multinomial(2, temperature=1.5)
    plain = continuous(generate.text(a_model(), sampler=sampler))("the cat", max_tokens=30, rng=5, policies=[Cooling()])
    model = a_model()
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
def test_a_draft_that_fails_is_let_go_with_one_warning(answer: Any) -> None:
    # Steady, so that a guess is asked for, however busy the machine is.
    generator = generate.text(a_model())
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
    generator = generate.text(a_model())
    wanted = generator("the", max_tokens=8)
    monkeypatch.setattr(draft, "forward", lambda *_: 1 / 0)
    with pytest.warns(DraftWarning, match="ZeroDivisionError"):
        assert wanted == generator("the", max_tokens=8, draft=draft)
    gc.collect()
    assert draft.kv_store.nbytes == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_more_is_guessed_than_there_is_room_for(max_tokens: int) -> None:
    model = eager(a_model())
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
    model = a_model()
    prompt = "the name of the name of the name of the"
    wanted = generate.text(model)(prompt, max_tokens=24)
    proposed = []
    for least in (0.01, 0.55, 0.999):
        monkeypatch.setattr(engine_of(model)._speculation._lengths, "least", least)
        with model.meter() as meter:
            assert generate.text(model)(prompt, max_tokens=24, draft="lookup") == wanted
        proposed.append(meter.proposed_tokens)
    # At the last, only drafts that measure the rates are made.
    assert proposed[0] > proposed[1] > proposed[2]


# -- lengths -----------------------------------------------------------------------------------------------------------


def lengths_for(draft: RowDraft, shares: Sequence[float], least: float = 0.35) -> list[int]:
    """The lengths of drafts of some rows in one step, of which all share the record of one drafter."""
    requests = [DraftRequest(StandIn(), draft, least) for _ in shares]  # type: ignore[arg-type]
    wanted = set_lengths(requests, shares)
    assert wanted == [request for request in requests if request.length]
    return [request.length for request in requests]


@given(st.floats(0.0, 1.0), st.sampled_from([0.05, 0.35]))
def test_as_many_tokens_are_drafted_as_are_all_accepted_with_the_least_probability(share: float, least: float) -> None:
    (length,) = lengths_for(RowDraft(_Silent()), [share], least)
    assert 0 <= length <= LONGEST
    assert length == 0 or share**length >= least * (1 - 1e-9)
    assert length == LONGEST or share ** (length + 1) < least * (1 + 1e-9)


def test_an_accelerator_drafts_more() -> None:
    assert DraftLengths("cpu").least > DraftLengths("cuda").least > 0.0
    assert DraftLengths("mps").least == DraftLengths("cuda").least


def test_a_row_whose_tokens_are_unlikely_drafts_none_beside_another() -> None:
    assert lengths_for(RowDraft(_Silent()), [0.9, 0.1, 0.0]) == [9, 0, 0]


def test_a_draft_that_is_unsure_stops_earlier() -> None:
    draft = RowDraft(_Silent())
    for _ in range(50):  # what is right of one grade says something of its kind, and nothing of the other grades
        draft.note(Graded("model", 4), True)
        draft.note(Graded("model", 0), False)
    shares = [draft.share(kind, 0.5) for kind in (Graded("model", 4), Graded("model", 0), "model", Graded("model", 2))]
    assert shares[0] > 0.95 > 0.7 > shares[2] > 0.3 > 0.05 > shares[1]
    assert shares[3] == 0.5
    assert draft.chance([Graded("model", 4), None, Graded("model", 2)]) == pytest.approx(shares[0] * 0.5)


def test_where_nothing_is_right_a_token_is_drafted_in_every_sixteenth_step() -> None:
    draft, tries = RowDraft(_Silent()), []
    for step in range(1, 100):
        lengths = lengths_for(draft, [0.1, 0.0, 0.2])
        if any(lengths):
            assert lengths == [1, 0, 1]
            tries.append(step)
            draft.note("any", False)
    assert tries == [16, 32, 48, 64, 80, 96]


def test_a_try_that_is_accepted_is_repeated_at_once_until_drafts_are_long() -> None:
    draft, lengths = RowDraft(_Silent()), list[int]()
    for _ in range(100):
        draft.note("any", False)
    while len(lengths) < 80:
        (length,) = lengths_for(draft, [draft.share("any", 0.7)])
        lengths.append(length)
        for _ in range(length):
            draft.note("any", True)
    begun = lengths.index(1)
    assert begun < 16
    assert all(lengths[begun:])
    assert max(lengths) > 4


class StandIn:
    num_pending = 1
    has_hint = False


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
    model = a_model()
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

    row: Any = SimpleNamespace(token_ids=[7], piece_start=1)
    begun = PolicyStates().begun([Listing()], row)
    ahead = begun
    for token_id in (1, 2, 3):
        ahead = ahead.advanced(token_id)
    now = begun.expecting([1, 2, 3], ahead)
    for token_id in (1, 5, 3):
        now = now.advanced(token_id)
    assert (asked, now.states) == ([1, 2, 3, 5, 3], ((1, 5, 3),))
    row.token_ids = [7, 1, 5, 3]
    after = now.expecting([3], ahead).rewound(1, row, None).advanced(4)
    assert (asked, after.states) == ([1, 2, 3, 5, 3, 4], ((1, 5, 4),))
    assert (begun.states, now.states, ahead.states) == (((),), ((1, 5, 3),), ((1, 2, 3),)), "none of them has changed"
