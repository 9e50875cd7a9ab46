"""Samplers of a user's own: what they draw when their rows share a step with others, and what becomes of those that go wrong."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from outlines_cont import BatchedExecutor, SequenceState, continuous, control, engine_of, generate
from outlines_cont.control import gen
from outlines_cont.engine.drawing.draw_plan import DrawPlan, drawing_of
from outlines_cont.errors import OptionError, SamplerError, UserCodeError
from outlines_cont.samplers import Greedy, Multinomial, Sampler, Temperature, greedy, multinomial
from outlines_cont.sampling import TokenCounts
from tests.fakes import EOS, random_model

Counts = Sequence[TokenCounts | None] | None


@dataclass
class Second:
    """Takes the second most probable token that is allowed, where there are two and the random number is large."""

    num_samples: int = 1
    needs_random: bool = True
    needs_counts: bool = False
    calls: list[tuple[int, bool, bool]] = field(default_factory=list)

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts = None) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append((len(logits), uniforms is not None, counts is not None))
        values, ids = logits.topk(2, dim=-1)
        takes_second = (values[:, 1] > -torch.inf) & (torch.ones(len(logits)) if uniforms is None else uniforms > 0.3)
        token_ids = torch.where(takes_second, ids[:, 1], ids[:, 0])
        return token_ids, logits.log_softmax(-1).gather(-1, token_ids[:, None])[:, 0]


@dataclass
class Rarest(Second):
    """Takes the allowed token that stands in the row least often, by the counts."""

    needs_random: bool = False
    needs_counts: bool = True

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts = None) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append((len(logits), uniforms is not None, counts is not None))
        assert counts is not None
        for row, held in zip(logits, counts, strict=True):
            assert held is not None
            row[torch.from_numpy(held.token_ids[held.in_row > 0])] -= 50.0
        return logits.argmax(-1), torch.zeros(len(logits))


class Quiet(Multinomial):
    """A child of our own sampler that draws otherwise."""

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts = None) -> tuple[torch.Tensor, torch.Tensor]:
        return greedy().sample(logits, None)


def _together(calls: Sequence[tuple[Any, str, int]]) -> list[SequenceState]:
    """The states of several calls that share their steps, and a check that they do."""

    async def run() -> list[SequenceState]:
        return await asyncio.gather(*(continuous(write).acall(prompt, rng=seed, max_tokens=10) for write, prompt, seed in calls))

    engine = engine_of(random_model())
    before = engine.stats
    states = asyncio.run(run())
    assert (engine.stats - before).rows_per_step > 1.5
    return states


def _alone(calls: Sequence[tuple[Any, str, int]]) -> list[SequenceState]:
    return [continuous(write)(prompt, rng=seed, max_tokens=10) for write, prompt, seed in calls]


def _shown(state: SequenceState) -> tuple[Any, ...]:
    return state, state.sampling_logprobs.nan_to_num(1.0).numpy().round(6).tolist(), [[str(e) for e in row] for row in state.errors]


def _others() -> list[tuple[Any, str, int]]:
    model = random_model()
    return [(generate.text(model, sampler=multinomial(2, temperature=2.0)), "is", 3), (generate.regex(model, "[a-c]{6}"), "of", 4)]


@pytest.mark.parametrize("make", [Second, Rarest, lambda: Second(num_samples=3), Quiet])
def test_rows_of_an_own_sampler_are_drawn_by_it_beside_others(make: Callable[[], Any]) -> None:
    model = random_model()
    calls = [
        (generate.text(model, sampler=make()), "the name", 1),
        (generate.regex(model, "[a-c]{4,9}(yes|no)", sampler=make()), "a", 2),
        (generate.text(model, sampler=Second()), "a", 5),
        *_others(),
    ]
    assert [_shown(state) for state in _alone(calls)] == [_shown(state) for state in _together(calls)]


def test_an_own_sampler_is_given_its_rows_and_what_it_needs_in_one_call() -> None:
    model = random_model()
    second, rarest = Second(num_samples=2), Rarest()
    calls = [
        (generate.text(model, sampler=second), "the name", 1),
        (generate.text(model, sampler=second), "a", 2),
        (generate.text(model, sampler=rarest), "a", 2),
        (generate.text(model, sampler=multinomial(presence_penalty=1.0)), "a", 2),
    ]
    _together(calls)
    assert {call[1:] for call in second.calls} == {(True, False)}
    assert {call[1:] for call in rarest.calls} == {(False, True)}
    assert max(second.calls)[0] == 4
    assert len(second.calls) < 20


def test_an_own_sampler_that_writes_into_the_logits_changes_nothing_but_its_draw() -> None:
    masked = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, -torch.inf]])
    before = masked.clone()
    counts = [TokenCounts([2, 2], [False, True]), TokenCounts([0], [True])]
    drawn = DrawPlan([drawing_of(Rarest())] * 2).draw(masked, None, counts)
    assert drawn.token_ids.tolist() == [1, 1]
    assert before.equal(masked)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@dataclass
class Faulty(Second):
    """`Second`, but the rows whose random number is above 0.8 go wrong."""

    kind: str = ""

    def sample(self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts = None) -> tuple[torch.Tensor, torch.Tensor]:
        assert uniforms is not None
        token_ids, logprobs = super().sample(logits, uniforms)
        is_bad = uniforms > 0.8
        if not is_bad.any():
            return token_ids, logprobs
        if self.kind == "raises":
            raise ZeroDivisionError("one row in five")
        if self.kind == "leaves":
            raise SystemExit(2)
        if self.kind == "nan":
            return token_ids, logprobs.masked_fill(is_bad, torch.nan)
        bad_ids = {"large": 10**6, "negative": -1, "masked": EOS}
        if self.kind in bad_ids:
            return token_ids.masked_fill(is_bad, bad_ids[self.kind]), logprobs
        wrong: Any = {
            "none": None,
            "alone": token_ids,
            "lists": (token_ids.tolist(), logprobs.tolist()),
            "scalar": (token_ids[0], logprobs[0]),
            "column": (token_ids[:, None], logprobs),
            "floats": (token_ids.double(), logprobs),
            "ints": (token_ids, logprobs.long()),
        }
        return wrong[self.kind]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("raises", ZeroDivisionError, "one row in five"),
        ("leaves", UserCodeError, "raised SystemExit.*test_own_samplers.py"),
        ("none", SamplerError, r"expected \(1,\) token ids of int64 and \(1,\) log-probabilities from `sample`.*got None"),
        ("alone", SamplerError, r"got tensor\("),
        ("lists", SamplerError, r"got \(\["),
        ("scalar", SamplerError, r"got shape \(\) of torch.int64"),
        ("column", SamplerError, r"got shape \(1, 1\) of torch.int64"),
        ("floats", SamplerError, r"got shape \(1,\) of torch.float64"),
        ("ints", SamplerError, r"got shape \(1,\) of torch.int64"),
        ("large", SamplerError, r"expected token ids from 0 to \d+ from Faulty\(.*got 1000000"),
        ("negative", SamplerError, "got -1"),
        ("masked", SamplerError, f"expected a token that the mask allows from Faulty.*got {EOS}, whose logit is minus"),
        ("nan", SamplerError, r"expected finite log-probabilities from Faulty.*got \[nan\]"),
    ],
)
def test_what_an_own_sampler_gets_wrong_fails_the_row_alone(kind: str, error: type, message: str) -> None:
    write = generate.regex(random_model(), "[a-f]{10}", sampler=Faulty(num_samples=6, kind=kind))
    calls = [(write, "the name", 1), *_others()]
    together, alone = _together(calls), _alone(calls)
    assert [state.text if state.shape == (1, 1) else list(state) for state in alone] == [
        state.text if state.shape == (1, 1) else list(state) for state in together
    ]
    assert [_shown(state) for state in alone[1:]] == [_shown(state) for state in together[1:]]
    good = continuous(generate.regex(random_model(), "[a-f]{10}", sampler=Second(num_samples=6)))
    wanted = list(good("the name", rng=1, max_tokens=10))
    errors = together[0].errors[0]
    assert 0 < sum(e is None for e in errors) < 6
    for text, expected, e in zip(together[0], wanted, errors, strict=True):
        assert expected.startswith(text)
        if e is None:
            assert text == expected
        else:
            with pytest.raises(error, match=message):
                raise e


def test_ctrl_c_in_a_sampler_ends_the_call_and_no_other() -> None:
    @dataclass
    class Interrupted(Second):
        def sample(self, *arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().sample(*arguments)

    other = generate.text(random_model()).stream("the name", max_tokens=12)
    written = next(other)
    with pytest.raises(KeyboardInterrupt):
        generate.text(random_model(), sampler=Interrupted())("a", max_tokens=4)
    assert written + "".join(other) == generate.text(random_model())("the name", max_tokens=12)


def test_an_error_does_not_hold_the_logits_of_the_step() -> None:
    held: list[Any] = []

    @dataclass
    class Raising(Second):
        def sample(self, logits: torch.Tensor, *arguments: Any) -> Any:
            held.append(weakref.ref(logits))
            raise ValueError("no")

    state = continuous(generate.text(random_model(), sampler=Raising(num_samples=3)))("a", max_tokens=4, rng=1)
    gc.collect()
    assert [str(e) for e in state.errors[0]] == ["no"] * 3
    assert len(held) == 4
    assert [ref() for ref in held] == [None] * 4


def test_rows_without_a_distribution_are_not_given_to_an_own_sampler() -> None:
    masked = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [-torch.inf, -torch.inf], [3.0, -torch.inf]])
    sampler = Second(num_samples=1)
    plan = DrawPlan([drawing_of(sampler)] * 4)
    drawn = plan.draw(masked, torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64), None)
    assert drawn.token_ids[[0, 3]].tolist() == [0, 0]
    assert drawn.logprobs.isfinite().tolist() == [True, False, False, True]
    assert drawn.errors == {}
    assert {call[0] for call in sampler.calls} == {1}


@pytest.mark.parametrize("missing", ["needs_random", "needs_counts", "sample"])
def test_a_sampler_that_lacks_something_is_refused_at_once(missing: str) -> None:
    names = {name: value for name, value in vars(Second).items() if name != missing and not name.startswith("__")}
    sampler = type("Half", (), {"num_samples": 1, **names})()
    with pytest.raises(OptionError, match=f"`needs_counts` and `sample`, got .*Half.* which has no `{missing}`"):
        generate.text(random_model(), sampler=sampler)("a", max_tokens=2)


# -- another temperature -----------------------------------------------------------------------------------------------


@dataclass
class Tempered(Second):
    """Knows what another temperature is."""

    def with_temperature(self, temperature: float) -> Sampler:
        return greedy() if temperature == 0 else multinomial(temperature=temperature)


async def _at_zero() -> None:
    await gen(max_tokens=4, temperature=0, name="text")


def test_a_script_asks_an_own_sampler_for_another_temperature() -> None:
    model = random_model()
    wanted = control.run(model, _at_zero, "the").captures["text"]
    result = control.run(model, _at_zero, "the", sampler=Tempered(), rng=1)  # type: ignore[arg-type]
    assert wanted == result.captures["text"]
    with pytest.raises(OptionError, match=r"with a method `with_temperature`.*temperature to 0, got Second\("):
        control.run(model, _at_zero, "the", sampler=Second(), rng=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"`with_temperature`.*got multinomial\(\)"):
        control.run(model, _at_zero, "the", sampler=Quiet(), rng=1)


def test_another_temperature_takes_the_place_of_the_sampler_s() -> None:
    from outlines_cont.samplers import TopK, TopP

    sampler = multinomial(warpers=(TopK(9), Temperature(0.5), TopP(0.9), Temperature(2.0)), presence_penalty=1.0)
    assert repr(sampler.with_temperature(3.0)) == (
        "multinomial(presence_penalty=1.0, warpers=(TopK(k=9), Temperature(t=3.0), TopP(p=0.9)))"
    )
    assert sampler.with_temperature(0) == greedy(presence_penalty=1.0)
    assert multinomial(3, top_k=5).with_temperature(2.0) == multinomial(top_k=5, temperature=2.0)
    assert multinomial(temperature=0.5, top_k=5).with_temperature(1.0) == multinomial(top_k=5)
    assert Greedy().with_temperature(0.5) == multinomial(temperature=0.5)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_conversation_draws_by_an_own_sampler_and_is_as_it_was_where_that_goes_wrong() -> None:
    executor = BatchedExecutor(random_model(), seed=5)
    conversation = executor.create("the name")
    executor.infer()
    before = conversation.state
    for kind, error in (("raises", ZeroDivisionError), ("large", SamplerError), ("none", SamplerError)):
        faulty: Any = Faulty(kind=kind)
        with pytest.raises(error):
            for _ in range(60):
                conversation.step(faulty)
                conversation.rewind(1)
        assert before == conversation.state
    own: Any = Second()
    assert isinstance(conversation.step(own), int)
    assert own.calls == [(1, True, False)]
