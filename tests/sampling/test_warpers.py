"""Warpers: the standard ones in any order against an oracle that sorts; a user's own, written here, alone and beside others."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.engine import token_draws
from outlines_cont.engine.drawing.draw_plan import BatchDraw, DrawPlan
from outlines_cont.errors import SamplerError
from outlines_cont.samplers import DRY, XTC, MinP, Mirostat, Temperature, TopA, TopK, TopP, TypicalP, Warper, best_of, greedy, multinomial
from outlines_cont.sampling import SamplerBatch, TokenCounts, kernels
from outlines_cont.sampling.batch import WarperChain
from outlines_cont.sampling.warper import RowWarper
from tests.examples import examples
from tests.fakes import random_model
from tests.oracle import rescored
from tests.sampling.test_own_samplers import _together
from tests.sampling_oracle import NOTHING, Held, law_after, made_row, plain_law, softmax, warped

_WIDE = 9001
_STANDARD = (
    st.builds(Temperature, st.sampled_from([0.5, 1.0, 1.7]))
    | st.builds(TopK, st.integers(1, 14) | st.just(600))
    | st.builds(TopP, st.sampled_from([0.05, 0.31, 0.62, 0.9, 0.997, 1.0]))
    | st.builds(MinP, st.sampled_from([0.0, 0.001, 0.04, 0.3, 1.0]))
    | st.builds(TypicalP, st.sampled_from([0.05, 0.31, 0.62, 0.9, 0.997, 1.0]))
    | st.builds(TopA, st.sampled_from([0.0, 0.01, 0.2, 0.7, 1.0]))
)
_COINS = st.builds(
    XTC,
    st.sampled_from([0.00013, 0.011, 0.07, 0.21, 0.43, 0.6]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
)


@st.composite
def _chains(draw: st.DrawFn, max_size: int = 4) -> list[Warper]:
    """Standard warpers in any order, at times with a coin among them."""
    warpers = draw(st.lists(_STANDARD, max_size=max_size))
    if draw(st.booleans()):
        warpers.insert(draw(st.integers(0, len(warpers))), draw(_COINS))
    return warpers


_SHAPES = st.sampled_from(["peaked", "flat", "tied", "equal", "masked", "one"])
_UNIFORMS = st.floats(0, 1, exclude_max=True)


@dataclass(frozen=True)
class TopNSigma(Warper):
    """Keeps logits that are at most n standard deviations below the largest (Tang et al. 2024, arXiv:2411.07641)."""

    n: float

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        allowed = logits > -torch.inf
        count = allowed.sum(-1, keepdim=True)
        mean = logits.where(allowed, 0).sum(-1, keepdim=True) / count
        sigma = ((logits - mean).where(allowed, 0).square().sum(-1, keepdim=True) / count).sqrt()
        return logits.where(logits >= logits.amax(-1, keepdim=True) - self.n * sigma, -torch.inf)


@dataclass(frozen=True)
class Typical(Warper):
    """Keeps the tokens that are nearest to the expected surprise (Meister et al. 2023, arXiv:2202.00666)."""

    mass: float

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        logprobs = logits.log_softmax(-1)
        probs = logprobs.exp()
        entropy = -(probs * logprobs.clamp_min(-1e9)).sum(-1, keepdim=True)
        order = (-logprobs - entropy).abs().sort(-1).indices
        before = probs.gather(-1, order).cumsum(-1) - probs.gather(-1, order)
        keeps = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < self.mass)
        return logits.where(keeps, -torch.inf)


def _plain_own(x: np.ndarray, warper: Warper, held: Held = NOTHING) -> np.ndarray:
    """The same for one row, in numpy, token by token."""
    if isinstance(warper, TopNSigma):
        finite = x[np.isfinite(x)]
        return np.where(x >= finite.max() - warper.n * finite.std(), x, -np.inf)
    if isinstance(warper, Typical):
        probs = softmax(x)
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        kept, total = [], 0.0
        for i in sorted(np.flatnonzero(probs), key=lambda i: abs(-math.log(probs[i]) - entropy)):
            if total >= warper.mass:
                break
            kept.append(i)
            total += probs[i]
        return np.where(np.isin(np.arange(len(x)), kept), x, -np.inf)
    return warped(x, warper, held)


def _law(logits: Sequence[float], warpers: Sequence[Warper]) -> np.ndarray:
    return law_after(np.array(logits, dtype=np.float64), warpers, step=_plain_own)


# -- the standard ones -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(_STANDARD | _COINS, st.lists(_SHAPES, min_size=1, max_size=3), st.integers(0, 99), st.sampled_from([6, 40, 700]))
def test_the_plain_form_of_a_warper_is_the_oracle_s(warper: Warper, shapes: list[str], seed: int, size: int) -> None:
    logits = torch.stack([made_row(shape, seed + i, size) for i, shape in enumerate(shapes)])
    before = logits.clone()
    for row, got in zip(logits, warper.warp(logits), strict=True):
        assert np.abs(_law(row.tolist(), [warper]) - got.softmax(-1).numpy()).max() < 1e-12
    assert before.equal(logits)


@settings(max_examples=examples(90), deadline=None)
@given(_chains(), st.lists(st.tuples(_SHAPES, _UNIFORMS), min_size=1, max_size=3), st.integers(0, 99), st.sampled_from([6, 300, _WIDE]))
def test_standard_warpers_draw_in_any_order_what_the_oracle_draws(
    warpers: list[Warper], rows: list[tuple[str, float]], seed: int, size: int
) -> None:
    sampler = multinomial(warpers=warpers)
    logits = torch.stack([made_row(shape, seed + i, size) for i, (shape, _) in enumerate(rows)])
    kept = sampler.filtered(logits).softmax(-1)
    drawn = sampler.sample(logits, torch.tensor([u for _, u in rows], dtype=torch.float64))
    for row, probs, (_, u), token_id, logprob in zip(logits, kept, rows, *(x.tolist() for x in drawn), strict=True):
        law = plain_law(row.tolist(), sampler.params)
        assert np.abs(law - probs.numpy()).max() < 1e-9
        assert law[:token_id].sum() - 1e-9 <= u <= law[: token_id + 1].sum() + 1e-9
        assert math.log(law[token_id]) == pytest.approx(logprob, abs=1e-9)


def test_ties_outside_of_the_blocks_that_are_looked_at_count_for_top_p() -> None:
    # Three tokens share the second place; of their blocks only one was looked at, and top_p took the first token for enough.
    logits = torch.full((1, _WIDE), -5.0, dtype=torch.float64)
    logits[0, [0, 64, 128, 192]] = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    token_ids, logprobs = multinomial(top_k=2, top_p=0.5).sample(logits, torch.tensor([0.9], dtype=torch.float64))
    assert int(token_ids[0]) == 192
    assert -math.log(math.e + 3) == pytest.approx(float(logprobs[0]))


def test_options_are_the_standard_warpers_in_the_standard_order() -> None:
    by_options = multinomial(3, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
    warpers = (Temperature(0.7), TopK(5), TopP(0.9), MinP(0.1))
    assert by_options.warpers == warpers
    assert by_options == multinomial(3, warpers=list(warpers))
    assert hash(by_options) == hash(multinomial(3, warpers=warpers))
    assert repr(by_options) == "multinomial(3, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)"
    own = best_of(2, warpers=(TopK(5), TopNSigma(1.5), Temperature(0.7)), presence_penalty=1.0)
    assert str(own) == "mask > presence_penalty 1.0 > top_k 5 > top_n_sigma 1.5 > temperature 0.7 > draw"
    assert repr(own) == ("best_of(2, presence_penalty=1.0, warpers=(TopK(k=5), TopNSigma(n=1.5), Temperature(t=0.7)))")
    names = {**vars(samplers), "TopNSigma": TopNSigma}
    for sampler in (own, multinomial(warpers=(TopP(0.5), TopK(3))), multinomial(warpers=(Temperature(1.0), TopK(3)))):
        assert eval(repr(sampler), names) == sampler  # noqa: S307 (what the test is about)
        again = pickle.loads(pickle.dumps(sampler))  # noqa: S301 (what was pickled a line ago)
        assert (again, hash(again), repr(again)) == (sampler, hash(sampler), repr(sampler))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["peaked", "flat", "masked", "one"]), _UNIFORMS), min_size=1, max_size=4),
    st.sampled_from([multinomial(top_p=0.9), multinomial(top_k=5, min_p=0.1), multinomial(top_a=0.3), greedy()]),
    st.integers(0, 99),
)
def test_a_draw_that_only_marks_doubts_has_all_other_draws(rows: list[tuple[str, float]], sampler: Any, seed: int) -> None:
    logits = torch.stack([made_row(shape, seed + i, 9000) for i, (shape, _) in enumerate(rows)])
    uniforms = torch.tensor([u for _, u in rows], dtype=torch.float64)
    batch = SamplerBatch([sampler.params] * len(rows))
    wanted, found = batch.sample(logits, uniforms), batch.sample(logits, uniforms, marks_doubts=True)
    is_sure = found[1] != torch.inf
    assert torch.equal(wanted[0][is_sure], found[0][is_sure])
    assert torch.equal(wanted[1][is_sure], found[1][is_sure])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 40, 1000])
def test_the_largest_by_numpy_are_those_by_pytorch(dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(-20, 20, (30, size), generator=generator).to(dtype) / 4  # many are equal
    logits[3, : size // 2] = -torch.inf
    logits[4] = -torch.inf
    for count in {1, size // 3 or 1, size - 1}:
        found = [kernels.largest(logits, count), kernels.largest_indices(logits, count)]
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "_is_numpy", lambda values: False)
            wanted = [kernels.largest(logits, count), kernels.largest_indices(logits, count)]
        assert torch.equal(wanted[0][0], found[0][0])
        assert torch.equal(logits.gather(-1, wanted[0][1]), logits.gather(-1, found[0][1]))
        # Of equal ones at the border either may be taken.
        assert torch.equal(logits.gather(-1, wanted[1][0]).sort().values, logits.gather(-1, found[1][0]).sort().values)
        assert torch.equal(wanted[1][1], found[1][1])
        assert (found[1][0].diff() > 0).all()


def test_rows_in_doubt_are_drawn_from_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    write = continuous(generate.text(model, sampler=multinomial(2, top_p=0.999, temperature=9.0)))
    plain, asked = DrawPlan.draw, []

    def draw(self: DrawPlan, *given: Any, marks_doubts: bool = False) -> BatchDraw:
        found = plain(self, *given, marks_doubts=marks_doubts)
        asked.append((marks_doubts, bool((found.logprobs == torch.inf).any())))
        return found

    monkeypatch.setattr(token_draws, "must_wait", lambda tensor: True)  # as on a GPU
    monkeypatch.setattr(DrawPlan, "draw", draw)
    marking = write(["a", "the"], max_tokens=12, rng=1)
    assert (True, True) in asked
    assert (False, True) not in asked
    monkeypatch.setattr(DrawPlan, "draw", plain)
    monkeypatch.setattr(token_draws, "must_wait", lambda tensor: False)
    assert _tokens(write(["a", "the"], max_tokens=12, rng=1)) == _tokens(marking)


_ANY = [
    *(multinomial(top_p=p) for p in (0.3, 0.9, 0.9999, 0.999999)),
    *(multinomial(temperature=t, top_p=0.9999) for t in (0.5, 3.0)),
    multinomial(),
    multinomial(top_k=5),
    multinomial(top_k=600, min_p=0.001),
    multinomial(min_p=0.3, repetition_penalty=1.3, frequency_penalty=0.2),
    multinomial(logit_bias={3: 2.0}, top_p=0.95),
    *(multinomial(warpers=(warper,)) for warper in (TopA(0.2), TypicalP(0.9), XTC(0.01, 0.5), Mirostat(3.0, 0.1), DRY(1.0, 1.5))),
    multinomial(warpers=(TypicalP(0.95), TopP(0.9999), Temperature(2.0))),
    greedy(presence_penalty=0.5),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "shape"), [(300, "peaked"), (300, "tied"), (300, "one"), (9000, "flat"), (9000, "equal"), (9000, "masked")]
)
def test_logits_of_any_type_are_drawn_from_as_their_numbers_say(dtype: torch.dtype, size: int, shape: str) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.stack([made_row(shape, seed, size) for seed, _ in enumerate(_ANY)]).to(dtype)
    uniforms = torch.rand(len(_ANY), generator=generator, dtype=torch.float64)
    ids, is_new, drawn = [1, 3, 3, 1, 3], [False, False, True, True, True], [None, None, -2.0, -1.0, -3.0]
    counts = [TokenCounts(ids, is_new, drawn, 2) for _ in _ANY]
    given = logits.clone()
    token_ids, logprobs = SamplerBatch([sampler.params for sampler in _ANY]).sample(logits, uniforms, counts)
    assert torch.equal(given, logits)
    assert logprobs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, sampler in enumerate(_ANY):
        alone = sampler.sample(logits[row : row + 1], uniforms[row : row + 1], counts[row : row + 1])
        assert (int(token_ids[row]), pytest.approx(float(logprobs[row]), abs=1e-5)) == (int(alone[0]), float(alone[1]))
        law, token_id = plain_law(logits[row].tolist(), sampler.params, ids, ids[2:], [-2.0, -1.0, -3.0]), int(token_ids[row])
        if not sampler.params.is_greedy:
            # Of truncated rows the first and the last token that are kept may differ in float32.
            error = 1e-9 if dtype == torch.float64 else 1e-4
            assert law[:token_id].sum() - error <= float(uniforms[row]) <= law[: token_id + 1].sum() + error
            assert math.log(law[token_id]) == pytest.approx(float(logprobs[row]), abs=error * 10)


# -- a user's own ------------------------------------------------------------------------------------------------------

_OWN = st.sampled_from([TopNSigma(0.5), TopNSigma(2.0), Typical(0.3), Typical(0.9)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_STANDARD, max_size=2),
    _OWN,
    _chains(2),
    st.lists(st.tuples(st.sampled_from(["peaked", "flat", "masked", "one"]), _UNIFORMS), min_size=1, max_size=4),
    st.integers(0, 99),
    st.sampled_from([6, 300]),
)
def test_an_own_warper_acts_at_its_place_beside_rows_of_other_samplers(
    before: list[Warper], own: Warper, after: list[Warper], rows: list[tuple[str, float]], seed: int, size: int
) -> None:
    mine = multinomial(warpers=(*before, own, *after))
    others = [mine, greedy(), multinomial(top_k=3, temperature=0.7), multinomial(warpers=(own,), presence_penalty=0.5)]
    chosen = [others[i % 4] for i in range(len(rows))]
    logits = torch.stack([made_row(shape, seed + i, size) for i, (shape, _) in enumerate(rows)])
    uniforms = torch.tensor([u for _, u in rows], dtype=torch.float64)
    counts = [TokenCounts([1, 2, 2], [False, True, True])] * len(rows)
    drawn = SamplerBatch([sampler.params for sampler in chosen]).sample(logits, uniforms, counts)
    for i, sampler in enumerate(chosen):
        alone = sampler.sample(logits[i : i + 1], uniforms[i : i + 1], counts[i : i + 1])
        assert (int(alone[0]), float(alone[1])) == (int(drawn[0][i]), pytest.approx(float(drawn[1][i])))
        if sampler is mine:
            law, token_id = _law(logits[i].tolist(), mine.warpers), int(alone[0])
            assert law[:token_id].sum() - 1e-9 <= rows[i][1] <= law[: token_id + 1].sum() + 1e-9
            assert math.log(law[token_id]) == pytest.approx(float(alone[1]), abs=1e-9)


def _tokens(state: SequenceState) -> tuple[Any, ...]:
    assert all(error is None for errors in state.errors for error in errors)
    return state, state.sampling_logprobs.nan_to_num(1.0).numpy().round(6).tolist()


_SHARP = (Temperature(3.0), TopNSigma(1.2))


@pytest.mark.parametrize(
    "sampler",
    [
        multinomial(2, warpers=_SHARP),
        multinomial(warpers=(Typical(0.6), Temperature(4.0))),
        multinomial(2, warpers=_SHARP, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={70: 2.0}),
        best_of(3, warpers=_SHARP),
    ],
)
def test_own_warpers_write_beside_other_rows_what_they_write_alone(sampler: Any) -> None:
    model = random_model()
    calls = [
        (generate.text(model, sampler=sampler), "the name", 1),
        (generate.regex(model, "[a-c]{3,9}(yes|no)", sampler=sampler), "a", 2),
        (generate.text(model, sampler=multinomial(2, temperature=2.0, top_k=9)), "is", 3),
        (generate.text(model, sampler=greedy(presence_penalty=1.0)), "of", 4),
        (generate.regex(model, "[a-f]{4,12}", sampler=multinomial(warpers=(Typical(0.5),))), "the", 5),
    ]
    alone = [_tokens(continuous(write)(prompt, rng=seed, max_tokens=10)) for write, prompt, seed in calls]
    assert alone == [_tokens(state) for state in _together(calls)]


@dataclass(frozen=True)
class _Faulty(Warper):
    """Goes wrong on the rows whose most probable token is even."""

    kind: str

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        is_even = logits.argmax(-1) % 2 == 0
        if not is_even.any():
            return logits
        if self.kind == "raises":
            raise ValueError("an even token")
        if self.kind == "leaves":
            raise SystemExit(3)
        if self.kind == "shape":
            return logits[:, 1:]
        if self.kind == "type":
            return logits > 0
        return torch.where(is_even[:, None], torch.nan if self.kind == "nan" else -torch.inf, logits)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("raises", ValueError, "an even token"),
        ("leaves", RuntimeError, "raised SystemExit"),
        (
            "shape",
            SamplerError,
            r"`warp` of _Faulty\(kind='shape'\) to return logits of the shape and type of its argument, a tensor of shape \(1, \d+\) and",
        ),
        ("type", SamplerError, "got a tensor of shape .* and torch.bool"),
        ("nan", SamplerError, "to keep a token with a finite logit in every row, got none, or NaN"),
        ("empty", SamplerError, "leave them out of sums and means"),
    ],
)
def test_a_warper_that_goes_wrong_fails_its_row_alone(kind: str, error: type, message: str) -> None:
    model = random_model()
    sampler = multinomial(8, warpers=(Temperature(6.0), _Faulty(kind)))
    other = (generate.text(model, sampler=multinomial(2, warpers=_SHARP)), "is", 3)
    calls = [(generate.text(model, sampler=sampler), "the name", 1), other]
    alone = [continuous(write)(prompt, rng=seed, max_tokens=10) for write, prompt, seed in calls]
    together = _together(calls)
    assert alone == together
    assert _tokens(alone[1]) == _tokens(together[1])
    errors = [e for e in together[0].errors[0] if e is not None]
    assert errors
    assert all(isinstance(e, error) for e in errors)
    with pytest.raises(error, match=message):
        raise errors[0]


@dataclass(frozen=True)
class _Writing(Warper):
    """Writes into what it is given, and brings every token back."""

    seen: list[bool] = field(default_factory=list, compare=False)

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        self.seen.append(bool((logits == -torch.inf).any()))
        return logits.zero_()


def test_a_warper_that_writes_into_the_logits_changes_nothing_else_and_brings_no_token_back() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 2.0, -torch.inf]])
    kept = multinomial(warpers=(_Writing(),)).filtered(logits)
    assert kept.tolist() == [[0.0, -math.inf, 0.0, -math.inf]]
    assert logits.tolist() == [[1.0, -math.inf, 2.0, -math.inf]]
    warper, model = _Writing(), random_model()
    text = continuous(generate.text(model, sampler=multinomial(2, warpers=(warper,))))("the", max_tokens=6, rng=3)
    digits = continuous(generate.regex(model, "[a-d]{8}", sampler=multinomial(2, warpers=(warper,)), end="eos"))("the", rng=3)
    for state in (text, digits):
        for sample in range(2):
            mask = state.attention_mask[0, sample]
            ids, logprobs = (x[0, sample][mask].tolist() for x in (state.token_ids, state.logprobs))
            start = len(ids) - sum(x == x for x in logprobs)
            assert rescored(model, ids)[start:] == pytest.approx(logprobs[start:], abs=1e-5)
    assert all(set(written[3:]) <= set("abcd") for written in digits)
    assert any(warper.seen)


@dataclass(frozen=True)
class _Absolute(Warper):
    """Looks at more than differences of logits: keeps those above 0."""

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.where(logits > 0, -torch.inf)


def test_an_own_warper_is_given_the_logits_themselves_behind_a_standard_one() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, -1.0]])
    kept = multinomial(warpers=(TopK(3), _Absolute())).filtered(logits)
    assert kept.tolist() == [[4.0, 3.0, 2.0, -math.inf]]


class _OtherTopK(TopK):
    """Keeps the k least probable tokens: a child of a standard warper, whose fast form is not its own."""

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.where(logits <= logits.sort(-1).values[:, self.k - 1, None], -torch.inf)


class _Fast(TopNSigma):
    """An own warper with a fast form of its own."""

    @classmethod
    def for_rows(cls, warpers: Sequence[Any]) -> RowWarper | None:
        return TopK.for_rows([TopK(1) for _ in warpers])


def test_a_child_of_a_standard_warper_is_asked_itself() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, -1.0]])
    assert (multinomial(warpers=(_OtherTopK(1),)).filtered(logits) > -torch.inf).tolist() == [[False] * 3 + [True]]
    assert int(multinomial(warpers=(_OtherTopK(1),)).sample(logits, torch.tensor([0.5]))[0]) == 3
    assert not multinomial(warpers=(_OtherTopK(1),)).params.is_standard
    assert not multinomial(warpers=(_Fast(1.0),)).params.is_standard
    assert int(multinomial(warpers=(_Fast(9.0),)).sample(logits, torch.tensor([0.99]))[0]) == 0
    assert repr(multinomial(warpers=(_OtherTopK(1),))) == "multinomial(warpers=(_OtherTopK(k=1),))"


def test_a_chain_without_a_distribution_says_so_and_raises_nothing() -> None:
    logits = torch.stack([torch.full((6,), -torch.inf), torch.arange(6.0)])
    token_ids, logprobs = multinomial(warpers=(Temperature(2.0), TopNSigma(1.0))).sample(logits, torch.rand(2).double())
    assert torch.isfinite(logprobs).tolist() == [False, True]
    assert isinstance(WarperChain([], [TopNSigma(1.0)]).kept(logits), torch.Tensor)
    assert 0 <= int(token_ids[0]) < 6


LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3
LOGITS[1, 5:] = -torch.inf  # few are left
LOGITS[2] = 1.0  # all are equal
LOGITS[3, 0] = 30.0  # one has it all


def _cut(logits: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    return logits.where(logits >= floor, -torch.inf)


@pytest.mark.parametrize(
    "warper",
    [
        *(TopK(1), TopK(7), TopK(40), TopK(90), TopP(0.1), TopP(0.9), TopP(0.999), MinP(0.05), MinP(0.5), MinP(1)),
        *(
            TopA(0.1), TopA(0.9), TypicalP(0.2), TypicalP(0.9), Mirostat(2.0), Mirostat(5.0), Temperature(0.5), Temperature(3),
        ),
    ],
    ids=repr,
)  # fmt: skip
def test_one_row_or_many_are_warped_alike(warper: Warper) -> None:
    alone = warper.warp(LOGITS.clone())
    together = warper.for_rows([warper] * len(LOGITS))
    assert together is not None
    if isinstance(warper, Mirostat):  # its bound moves with what was drawn; at first it is twice `tau`
        surprise = -LOGITS.log_softmax(-1) / math.log(2)
        kept = (surprise <= 2 * warper.tau) | (LOGITS.amax(-1, keepdim=True) == LOGITS)
        assert torch.equal(kept & LOGITS.isfinite(), alone.isfinite())
    else:
        assert torch.equal(alone.isfinite(), together.whole(LOGITS.clone(), _cut).isfinite())
        assert torch.allclose(alone, together.whole(LOGITS.clone(), _cut))
    assert alone.amax(-1).isfinite().all()
    assert (alone[1, 5:] == -torch.inf).all()


@pytest.mark.parametrize("warper", [TopP(1.0), MinP(0.0), TopA(0.0), TypicalP(1.0), DRY(0.0)], ids=repr)
def test_what_changes_nothing_returns_what_it_is_given(warper: Warper) -> None:
    assert warper.is_neutral
    assert warper.warp(LOGITS) is LOGITS


def test_a_warper_that_needs_counts_has_a_form_for_rows() -> None:
    with pytest.raises(TypeError, match=r"expected a method `for_rows` of Decay, whose `needs_counts` is true"):

        class Decay(Warper):
            needs_counts = True

            def warp(self, logits: torch.Tensor) -> torch.Tensor:
                return logits
