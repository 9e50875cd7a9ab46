"""Choices that are calibrated by how probable their options are anyway: against the definition, by plain scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, Template, Thinking, continuous, generate, policies, samplers
from outlines_cont.errors import CalibrationWarning, OptionError, OutlinesContError, ResumeError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.pipelines import Extractor
from tests.fakes import fresh_model, random_model, saying, scripted_model

OPTIONS = ["yes", "no", "green", "the red"]
_SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["red", "green"]}}, "required": ["kind"], "additionalProperties": False}
PROMPTS = ["the name is>", "is it red or green: ", "12 of the"]
pytestmark = pytest.mark.filterwarnings("ignore::outlines_cont.errors.CalibrationWarning")


def _conditional(model: HuggingFaceModel, prompt: str, options: Sequence[str] = OPTIONS) -> dict[str, float]:
    """The model's own law over options of which none begins another."""
    shares = [math.exp(float(one.sum())) for one in model.score(prompt, list(options))]
    return {option: share / sum(shares) for option, share in zip(options, shares, strict=True)}


def _calibrated(laws: Sequence[Mapping[str, float]], own: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """The definition: what each is worth beyond the mean of some laws, normalised."""
    weights = {o: (own[o] / (sum(law[o] for law in laws) / len(laws))) ** (1 / temperature) for o in own}
    return {option: weight / sum(weights.values()) for option, weight in weights.items()}


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    prompt=st.sampled_from(PROMPTS),
    bases=st.lists(st.sampled_from(["N/A", "it: ", "red>", "the blue"]), min_size=1, max_size=3),
    options=st.lists(st.sampled_from([*OPTIONS, "age", "12 of"]), min_size=2, max_size=5, unique=True),
)
def test_a_calibrated_choice_is_what_the_definition_says(prompt: str, bases: list[str], options: list[str]) -> None:
    model = random_model()
    choose = generate.choice(model, options)
    found = choose.probabilities(prompt, against=bases)
    own, laws = _conditional(model, prompt, options), [_conditional(model, base, options) for base in bases]
    expected = _calibrated(laws, own)
    assert expected == pytest.approx(dict(found), rel=1e-5)
    assert own == pytest.approx(found.conditional, rel=1e-5)
    assert {o: sum(law[o] for law in laws) / len(laws) for o in options} == pytest.approx(found.prior, rel=1e-5)
    assert choose(prompt, against=bases) == found.best == max(expected, key=expected.__getitem__)
    assert choose.probabilities(prompt).prior is None


def test_a_batch_is_calibrated_by_its_own_mean() -> None:
    model = random_model()
    choose = generate.choice(model, OPTIONS)
    laws = [_conditional(model, prompt) for prompt in PROMPTS]
    found = choose.probabilities(PROMPTS, against="batch")
    for own, one in zip(laws, found, strict=True):
        assert _calibrated(laws, own) == pytest.approx(dict(one), rel=1e-5)
    assert choose(PROMPTS, against="batch") == [one.best for one in found]
    # A prompt that is given twice counts twice, though it is scored once.
    twice = choose.probabilities([PROMPTS[0], *PROMPTS], against="batch")[1]
    assert _calibrated([laws[0], *laws], laws[0]) == pytest.approx(dict(twice), rel=1e-5)
    assert choose([PROMPTS[0], *PROMPTS], against="batch")[1] == twice.best


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_draws_have_the_calibrated_law(temperature: float) -> None:
    model = random_model()
    choose = generate.choice(model, OPTIONS, sampler=samplers.multinomial(600, temperature=temperature))
    draws = choose(PROMPTS[0], rng=4, against="N/A")
    law = _calibrated([_conditional(model, "N/A")], _conditional(model, PROMPTS[0]), temperature)
    chi_squared = sum((draws.count(o) - 600 * chance) ** 2 / (600 * chance) for o, chance in law.items() if 600 * chance > 1)
    assert chi_squared < 21.1  # one in ten thousand, of three degrees of freedom


def test_states_and_token_probabilities_are_those_of_the_calibrated_choice() -> None:
    model = random_model()
    choose = continuous(generate.choice(model, ["the red", "the green", "no"]))
    with model.meter() as counts:
        state = choose(PROMPTS[0], against=["N/A", "it: "])
    assert counts.forwards <= 2  # the prompts without content run with the prompt
    law = choose.generator.probabilities(PROMPTS[0], against=["N/A", "it: "])
    row = state.rows[0][0]
    start = row.piece.start  # type: ignore[union-attr]
    assert math.exp(sum(row.sampling_logprobs[start:])) == pytest.approx(law[state.value])
    assert list(row.logprobs[start:]) == pytest.approx(model.score(PROMPTS[0], state.value).tolist(), abs=1e-6)
    assert "".join(choose.generator.stream(PROMPTS[0], against=["N/A", "it: "])) == state.value
    assert choose(PROMPTS[0], against=continuous(generate.text(model))("N/A", max_tokens=1)).value in ("the red", "the green", "no")


def test_thoughts_come_before_a_calibrated_choice() -> None:
    model = random_model()
    thinking = Thinking(begin="[T]", end="e", max_tokens=8)
    choose = continuous(generate.choice(model, OPTIONS, thinking=thinking))
    state = choose(PROMPTS[0], against="N/A")
    before = state.tokens[..., : state.rows[0][0].piece.start]  # type: ignore[union-attr]
    assert state.value == generate.choice(model, OPTIONS).probabilities(before, against="N/A").best


def test_doubts_are_told() -> None:
    model = random_model()
    choose = generate.choice(model, OPTIONS)
    with pytest.warns(CalibrationWarning, match=r"less than 1 % of the probability after 1 of 1 prompts.*into the prompt"):
        choose.probabilities(PROMPTS[0], against="N/A")
    with pytest.warns(CalibrationWarning, match=r"less than 1 %"):
        choose(PROMPTS[0], against="N/A")
    with pytest.warns(CalibrationWarning, match="equally frequent"):
        choose(PROMPTS, against="batch")
    told = generate.choice(scripted_model(saying("no")), ["n", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert told.probabilities("a>", against="b>").prior == pytest.approx({"n": 1, "y": 0}, abs=1e-6)
        assert told("a>", against="b>") == "n"  # as probable as after the prompt without content, and the first
        choose(PROMPTS[0])


def test_what_cannot_be_calibrated_is_refused() -> None:
    model = random_model()
    choose = generate.choice(model, OPTIONS)
    with pytest.raises(OptionError, match="generator of `generate.choice`, or of `generate.json`"):
        generate.regex(model, "a|b")(PROMPTS[0], against="N/A")
    with pytest.raises(OptionError, match="two prompts or more.*got 1"):
        choose(PROMPTS[0], against="batch")
    with pytest.raises(OptionError, match="two prompts or more.*got 1"):
        choose.probabilities(PROMPTS[0], against="batch")
    with pytest.raises(OptionError, match="policies.*against"):
        choose(PROMPTS[0], against="N/A", policies=[policies.ban(["green"])])
    with pytest.raises(OptionError, match="exact.*against"):
        generate.choice(model, OPTIONS, exact=False)(PROMPTS[0], against="N/A")
    with pytest.raises(OptionError, match="one character or more.*`against`"):
        generate.choice(model, [*OPTIONS, ""])(PROMPTS[0], against="N/A")


@pytest.mark.parametrize("against", [3, [], ["N/A", "a" * 5_000]])
def test_an_error_of_a_prompt_without_content_names_the_option(against: Any) -> None:
    model = random_model()
    choose, record = generate.choice(model, OPTIONS), generate.json(model, _SCHEMA, exact_fields=True)
    written = continuous(record)(PROMPTS[0])
    ways: list[Callable[[], Any]] = [
        lambda: choose(PROMPTS[0], against=against),
        lambda: choose.probabilities(PROMPTS[0], against=against),
        lambda: [*choose.stream(PROMPTS[0], against=against)],
        lambda: record(PROMPTS[0], against=against),
        lambda: written.alternatives("kind", against=against),
        lambda: Template("{{ text }}{{ choice('k', ['yes', 'no'], against=given) }}").run(model, text=PROMPTS[0], given=against),
        lambda: Extractor(model, _SCHEMA, against=against),
    ]
    for way in ways:
        with pytest.raises(OutlinesContError, match="`against`"):
            way()


def test_a_cut_state_that_was_saved_asks_for_it_again(tmp_path: Any) -> None:
    model = fresh_model()
    choose = continuous(generate.choice(model, OPTIONS))
    stream = choose.stream(PROMPTS[0], against="N/A")
    task = stream.task()
    next(task)
    task.close()
    assert choose.resume(stream.state) == choose(PROMPTS[0], against="N/A")
    stream.state.save(tmp_path / "state")
    loaded = SequenceState.load(tmp_path / "state", model)
    with pytest.raises(ResumeError, match="`against`.*`against=None` goes on without"):
        choose.resume(loaded)
    assert choose.resume(loaded, against="N/A").value == choose(PROMPTS[0], against="N/A").value
    assert choose.resume(loaded, against=None).value == choose(PROMPTS[0]).value
