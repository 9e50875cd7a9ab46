"""Choices of scripts: by the model's own law over whole texts, as those of `generate.choice`, wherever in a script they stand."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import continuous, control, engine_of, generate, policies, samplers
from outlines_cont.control import fixed, fork, gen, label
from outlines_cont.errors import DeadEnd, IncompleteOutput
from tests.fakes import FakeTokenizer, random_model, scripted_model

SETS = (["a", "ab", "abc", "b"], ["1", "10", "100", "12", "2"], ["yes", "no", "y"], [" the", " then", "zzz", "other words"])


def _law(model: Any, prompt: str, text: str, options: list[str], temperature: float) -> dict[str, float]:
    """The law of `generate.choice` after a text, appended to a prompt, at a temperature; the law itself is tested by enumeration."""

    async def script() -> None:
        await fixed(text)

    chances = generate.choice(model, options).probabilities(control.run(model, script, prompt).state)
    if temperature == 0:
        best = max(options, key=lambda option: chances[option])
        return {option: float(option == best) for option in options}
    weights = {option: chances[option] ** (1 / temperature) for option in options}
    return {option: weight / math.fsum(weights.values()) for option, weight in weights.items()}


@pytest.mark.parametrize("options", SETS, ids=lambda options: options[0].strip())
def test_forks_of_a_script_choose_by_the_law_of_whole_texts(options: list[str]) -> None:
    model, count = random_model(), 300

    async def script() -> None:
        await fixed("b")
        await fork(count)
        await gen(choice=options, temperature=0.7, name="chosen")

    result = control.run(model, script, "the", sampler=samplers.multinomial(), rng=5, budget=control.Budget(forks=count)).check()
    found = Counter(one.captures["chosen"] for one in result.forks)
    expected = _law(model, "the", "b", options, 0.7)
    assert found.total() == count
    distance = sum((found[option] - count * chance) ** 2 / (count * chance) for option, chance in expected.items() if count * chance > 1)
    assert distance < 25  # chi-squared of at most 4 degrees of freedom


@given(st.sampled_from(SETS), st.sampled_from(SETS), st.text("ab ", max_size=3), st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_script_of_choices_is_the_same_chain_of_calls(
    first: list[str], second: list[str], between: str, temperature: float, seed: int
) -> None:
    model, drawn = random_model(), samplers.multinomial(temperature=temperature) if temperature else samplers.greedy()

    async def script() -> None:
        await gen(choice=first, name="first")
        if between:
            await fixed(between)
        await gen(choice=second, name="second")

    result = control.run(model, script, "the", sampler=drawn, rng=seed).check()
    one, two = result.captures["first"], result.captures["second"]
    chained = continuous(generate.choice(model, first, sampler=drawn))("the", rng=seed)
    chained = chained.append(between) if between else chained
    chained = continuous(generate.choice(model, second, sampler=drawn))(chained)
    assert f"the{one}{between}{two}" == str(chained)
    assert result.state == chained


def test_a_choice_after_a_cut_is_that_after_the_text_that_is_left() -> None:
    model = random_model()

    async def script() -> None:
        await fixed("ab")
        here = label()
        for _ in range(2):
            await gen(choice=SETS[0], name="first")
            await fixed("", following=here)
        await gen(choice=SETS[0])

    result = control.run(model, script, "the").check()
    (best,) = [option for option, chance in _law(model, "the", "ab", SETS[0], 0).items() if chance]
    assert f"ab{best}" == result.text
    assert {"first": best} == result.captures


def test_what_acts_on_single_tokens_draws_them_under_the_mask() -> None:
    model = random_model()
    ways: list[dict[str, Any]] = [{"stop_at": "zz"}, {"policies": [policies.ban("q")]}, {"min_tokens": 1}]

    async def script(**options: Any) -> None:
        await gen(choice=["a", "b", "ab" * 40], name="chosen", **options)

    for options in ways:
        result = control.run(model, partial(script, **options), "the")
        masked = generate.choice(model, ["a", "b", "ab" * 40], exact=False)
        assert continuous(masked)("the", **options).value == result.text
    with pytest.raises(IncompleteOutput, match="'ababababa'"):  # as under the mask, since the longest has no room
        control.run(model, partial(script, max_tokens=8), "the").check()


def test_a_choice_that_the_model_would_never_write_is_an_error_of_gen() -> None:
    none = dict.fromkeys([*FakeTokenizer().encode("ab"), *FakeTokenizer().encode("a"), *FakeTokenizer().encode("b")], -math.inf)

    async def script() -> None:
        with pytest.raises(DeadEnd, match="probability zero for each"):
            await gen(choice=["a", "b"])
        await fixed("none")

    assert control.run(scripted_model(lambda ids: none), script, "c>").check().text == "none"


def test_a_program_that_is_cancelled_while_texts_are_scored_leaves_nothing_behind() -> None:
    model = random_model()

    async def script() -> None:
        await gen(choice=SETS[3])

    engine = engine_of(model)
    whole = control.run(model, script, "the").check().text
    for steps in range(5):
        program = control.start(model, script, "the")
        for _ in range(steps):
            engine.step()
        program.cancel()
        engine.step()
        assert not [*engine._scheduler.rows]
    assert whole in SETS[3]
    assert control.run(model, script, "the").check().text == whole
