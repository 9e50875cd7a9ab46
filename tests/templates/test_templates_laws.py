"""Random templates against a plain interpreter that chains generators by hand, and many rows against each row alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, engine_of, generate, samplers
from outlines_cont.errors import InvalidLogits
from outlines_cont.policies import Branch, Policy, RowView, TokenSet
from outlines_cont.templates import Template, TemplateResult
from outlines_cont.templates.program import TemplateProgram  # a run that can be left between any two steps
from tests.examples import examples
from tests.fakes import random_model, scripted_model

_FEW = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Text:
    text: str

    def source(self) -> str:
        return self.text

    def run(self, plain: Plain, in_loop: bool) -> None:
        plain.text += self.text


@dataclass(frozen=True)
class Value:
    """A value of the row."""

    def source(self) -> str:
        return "{{ given }}"

    def run(self, plain: Plain, in_loop: bool) -> None:
        plain.text += plain.given


@dataclass(frozen=True)
class Gen:
    name: str
    pattern: str | None
    max_tokens: int
    is_shown: bool

    def source(self) -> str:
        pattern = f", regex='{self.pattern}'" if self.pattern else ""
        shown = f"{{{{ {self.name} | upper }}}}" if self.is_shown else ""
        return f"{{{{ gen('{self.name}'{pattern}, max_tokens={self.max_tokens}) }}}}{shown}"

    def run(self, plain: Plain, in_loop: bool) -> None:
        if self.pattern:
            generator = generate.regex(plain.model, self.pattern, sampler=plain.sampler)
        else:
            generator = generate.text(plain.model, sampler=plain.sampler)
        value = plain.generate(self.name, generator, self.max_tokens, in_loop)
        plain.text += value.upper() if self.is_shown else ""


@dataclass(frozen=True)
class Choice:
    """A choice, and a condition on it."""

    options: tuple[str, str]
    first: tuple[Any, ...]
    other: tuple[Any, ...]

    def source(self) -> str:
        condition = f"{{% if k == '{self.options[0]}' %}}{written(self.first)}{{% else %}}{written(self.other)}{{% endif %}}"
        return f"{{{{ choice('k', {list(self.options)!r}) }}}}{condition}"

    def run(self, plain: Plain, in_loop: bool) -> None:
        generator = generate.choice(plain.model, self.options, sampler=plain.sampler)
        value = plain.generate("k", generator, None, in_loop)
        for part in self.first if value == self.options[0] else self.other:
            part.run(plain, in_loop)


@dataclass(frozen=True)
class Loop:
    count: int
    body: tuple[Any, ...]

    def source(self) -> str:
        return f"{{% for i in range({self.count}) %}}{{{{ i }}}}{written(self.body)}{{% endfor %}}"

    def run(self, plain: Plain, in_loop: bool) -> None:
        for name in names_in(self.body):
            plain.lists.add(name)
        for i in range(self.count):
            plain.text += str(i)
            for part in self.body:
                part.run(plain, True)


def names_in(parts: Sequence[Any]) -> set[str]:
    found: set[str] = set()
    for part in parts:
        found |= {part.name} if isinstance(part, Gen) else set()
        found |= {"k", *names_in(part.first), *names_in(part.other)} if isinstance(part, Choice) else set()
        found |= names_in(part.body) if isinstance(part, Loop) else set()
    return found


def lists_in(parts: Sequence[Any]) -> set[str]:
    """Names in loops, also in branches that are not taken."""
    found: set[str] = set()
    for part in parts:
        found |= lists_in((*part.first, *part.other)) if isinstance(part, Choice) else set()
        found |= names_in(part.body) if isinstance(part, Loop) else set()
    return found


def written(parts: Sequence[Any]) -> str:
    return "".join(part.source() for part in parts)


@dataclass
class Plain:
    """Runs a program as one would by hand."""

    model: Any
    sampler: Any
    seed: int
    given: str
    text: str = ""
    state: SequenceState | None = None
    captures: dict[str, list[Any]] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)

    def generate(self, name: str, generator: Any, max_tokens: int | None, in_loop: bool) -> Any:
        options = {} if max_tokens is None else {"max_tokens": max_tokens}
        if self.state is None:
            self.state = continuous(generator)(self.text, rng=self.seed, **options)
        else:
            self.state = continuous(generator)(self.state.append(self.text) if self.text else self.state, **options)
        self.text = ""
        self.captures.setdefault(name, []).append(self.state.values[0][0])
        return self.state.values[0][0]

    def end(self) -> SequenceState:
        if self.state is None:
            # Nothing is generated: the state of a prompt.
            return Template("{{ text }}").run(self.model, text=self.text).state  # type: ignore[return-value]
        return self.state.append(self.text) if self.text else self.state


_TEXTS = st.text("ab >:\n1", min_size=1, max_size=5).map(Text)
# Each pattern is whole within its tokens, so that nothing fails.
_GENS = st.one_of(
    st.builds(Gen, st.sampled_from("xy"), st.none(), st.integers(1, 4), st.booleans()),
    st.builds(Gen, st.sampled_from("xy"), st.sampled_from(["[ab]{2}", "a|bc", "[0-9]{1,2}"]), st.just(8), st.booleans()),
)
_OPTIONS = st.sampled_from([("ab", "b"), ("yes", "no"), ("1", "12")])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bodies = st.lists(inner, max_size=2).map(tuple)
    return st.one_of(st.builds(Loop, st.integers(0, 2), bodies), st.builds(Choice, _OPTIONS, bodies, bodies))


_PARTS = st.recursive(st.one_of(_TEXTS, _GENS, st.just(Value())), _nested, max_leaves=4)
_PROGRAMS = st.lists(_PARTS, min_size=1, max_size=5).map(lambda parts: (Text(">"), *parts, Value()))
_SAMPLERS = st.sampled_from([samplers.greedy(), samplers.multinomial(temperature=1.5)])


@_FEW
@given(program=_PROGRAMS, sampler=_SAMPLERS, given_text=st.text("ab{}%<", max_size=4))
def test_a_template_is_the_same_as_its_generators_chained_by_hand(program: Any, sampler: Any, given_text: str) -> None:
    model = random_model()
    template = Template(written(program))
    with model.meter() as paid:
        result = template.run(model, rng=7, sampler=sampler, given=given_text)
    plain = Plain(model, sampler, 7, given_text)
    with model.meter() as by_hand:
        for part in program:
            part.run(plain, False)
    expected = plain.end()
    assert result.state is not None
    assert result.state == expected
    assert result.text == str(expected)
    assert result.state.logprobs.nan_to_num(1.0).tolist() == expected.logprobs.nan_to_num(1.0).tolist()
    assert result.state.weights.tolist() == expected.weights.tolist()
    lists = lists_in(program)
    shaped = {name: items if name in lists or len(items) > 1 else items[0] for name, items in plain.captures.items()}
    assert dict(result.captures) == {**{name: [] for name in lists}, **shaped}
    assert template.generated == names_in(program)
    assert (paid.fed_tokens, paid.sampled_tokens, paid.forced_tokens) == (by_hand.fed_tokens, by_hand.sampled_tokens, by_hand.forced_tokens)


def _told(result: TemplateResult) -> Any:
    assert result.error is None
    assert result.state is not None
    return result.state.token_ids.tolist(), dict(result.captures), dict(result.finish_reasons)


@_FEW
@given(program=_PROGRAMS, sampler=_SAMPLERS, rows=st.lists(st.text("ab", max_size=6), min_size=2, max_size=5))
def test_rows_that_run_together_are_what_they_are_alone(program: Any, sampler: Any, rows: list[str]) -> None:
    model = random_model()
    template = Template(written(program))
    seeds = list(range(len(rows)))
    together = template.run(model, [{"given": row} for row in rows], rng=seeds, sampler=sampler)
    alone = [template.run(model, given=row, rng=seed, sampler=sampler) for row, seed in zip(rows, seeds, strict=True)]
    assert [*map(_told, together)] == [*map(_told, alone)]


class _Failing(Policy[int]):
    """Fails after a number of tokens; at -1 when it begins."""

    def __init__(self, count: int) -> None:
        self.count = count

    def initial(self, row: RowView) -> int:
        return self._checked(-1) + 1

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=~TokenSet.of([self._checked(state)]))]

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def _checked(self, number: int) -> int:
        if number == self.count:
            raise ValueError(number)
        return number


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_a_span_that_fails_leaves_the_state_before_it_with_all_log_probabilities(count: int) -> None:
    before = ">{{ choice('k', ['ab', 'b']) }}"
    expected = Template(before).run(random_model()).state
    template = Template(before + "{{ gen('x', max_tokens=3, policies=[failing]) }}")
    result = template.run(random_model(), [{"failing": _Failing(count)}])[0]
    assert result.error is not None
    assert result.state == expected
    assert result.state.logprobs.nan_to_num(1.0).tolist() == expected.logprobs.nan_to_num(1.0).tolist()
    assert expected.logprobs[0, 0, -1] < 0.0  # of a forced token


def _left(model: Any, source: str, is_there: Callable[[TemplateProgram], bool]) -> SequenceState:
    """Return the state of a run that is left as soon as something holds."""
    program = next(Template(source)._programs(model, None, {}, None, None, None, None))
    with closing(program.task()) as task:
        for step in task:
            if is_there(program):
                break
            engine_of(model).advance(step.job)
            step.note()
    state = program.result().state
    assert state is not None
    return state


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_run_that_is_left_between_two_spans_has_all_log_probabilities(is_continued: bool) -> None:
    model = random_model()
    before = ">{{ choice('k', ['ab', 'b']) }}"
    expected = Template(before).run(model).state
    assert expected is not None
    assert expected.logprobs[0, 0, -1] < 0.0  # of a forced token
    state = _left(model, before + "{{ gen('x', max_tokens=3) }}", lambda program: "k" in program.captures)
    assert state == expected
    if is_continued:  # which scores what it feeds
        state = continuous(generate.text(model))(state.append("!"), max_tokens=1).tokens[: state.shape[2]]
    assert state.logprobs.nan_to_num(1.0)[0, 0].tolist() == pytest.approx(expected.logprobs.nan_to_num(1.0)[0, 0].tolist(), abs=1e-5)
    assert state.weights.item() == pytest.approx(expected.weights.item(), abs=1e-5)


@pytest.mark.parametrize("count", [-1, 0])
def test_log_probabilities_that_a_failed_span_left_unknown_are_never_zero(count: int) -> None:
    """The logits are NaN from the forced token on that a failed span, or one that was left, has not fed."""

    def script(ids: list[int]) -> dict[int, float]:
        return {101: math.nan} if ids[-1] == 100 else {100: 5.0}  # "a" is 100

    model = scripted_model(script)
    before = ">{{ choice('k', ['ab', 'c'], exact=false) }}"
    state = _left(model, before + "{{ gen('x', max_tokens=3) }}", lambda program: "k" in program.captures)
    template = Template(before + "{{ gen('x', max_tokens=3, policies=[failing]) }}")
    result = template.run(model, [{"failing": _Failing(count)}])[0]
    assert result.error is not None
    for found in (state, result.state):
        assert str(found) == ">ab"
        for read in ("logprobs", "weights", "scores"):
            with pytest.raises(InvalidLogits):
                getattr(found, read)


_TWO = ">{{ choice('k', ['ab', 'cd'], exact=false) }}-{{ gen('x', regex='[ab]{3}') }}"


class _Interrupt(BaseException):
    """Interrupts a step."""


def _ended(model: Any, program: TemplateProgram) -> TemplateResult:
    """Take the steps that a run awaits, and again after an interrupt; return the result."""
    task = program.task()
    step = next(task)
    while step is not None:
        try:
            engine_of(model).advance(step.job)
        except _Interrupt:
            continue
        step.note()
        step = next(task, None)
    return program.result()


@pytest.mark.parametrize("interrupted_at", range(1, 8))
def test_a_run_goes_on_after_interrupted_steps(interrupted_at: int) -> None:
    left = [10_000]  # calls of the script

    def script(ids: list[int]) -> dict[int, float]:
        left[0] -= 1
        if left[0] == 0:
            raise _Interrupt
        return {100 + len(ids) % 2: 2.0}

    model = scripted_model(script)
    expected = _ended(model, _program(model))
    left[0] = interrupted_at
    result = _ended(model, _program(model))
    assert left[0] < 0
    assert _told(result) == _told(expected)
    assert result.state is not None
    assert expected.state is not None
    assert result.state.logprobs.nan_to_num(1.0).tolist() == expected.state.logprobs.nan_to_num(1.0).tolist()
    assert engine_of(model).num_running == 0


def test_a_run_that_is_closed_between_two_spans_leaves_nothing_in_the_engine() -> None:
    model = random_model()
    program = _program(model)
    task = program.task()
    for step in task:
        if program.captures:
            break
        engine_of(model).advance(step.job)
        step.note()
    task.close()
    assert engine_of(model).num_running == 0
    assert str(program.result().state) in (">ab-", ">cd-")


def _program(model: Any) -> TemplateProgram:
    return next(Template(_TWO)._programs(model, None, {}, None, None, None, None))
