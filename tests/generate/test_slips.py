"""Slips of a first day: names of other libraries, misspelled names, a generator in place of a state. Each error says what to write."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

import fsm
import outlines_cont
from outlines_cont import Chat, SequenceState, Template, continuous, control, generate, models, pipelines, policies, samplers, templates
from outlines_cont.checks import check_one_of
from outlines_cont.errors import LengthWarning, NoValueWarning, OutlinesContError
from outlines_cont.generate import Generator
from outlines_cont.near_names import NearKeys, NearNames, did_you_mean
from tests.fakes import tiny


@cache
def _text() -> Generator:
    return generate.text(tiny())


@cache
def _state() -> SequenceState:
    return continuous(_text())("Message: Hello\nKind: ", max_tokens=4)


class Order(BaseModel):
    customer: str


def weather(city: str) -> None:
    """Tell the weather."""


SLIPS: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator resumes": (lambda: _text().resume(_state()), r"Write `continuous\(generator\)`, .* which has `resume`"),
    "the value of a generator": (lambda: _text().value, r"`generator\(prompt\)` is the value"),
    "a generator generates": (lambda: _text().generate("x"), r"Call it: `generator\(prompt\)`"),
    "the text of a state": (lambda: _state().text, r"Write `str\(state\)`"),
    "misspelled, too": (lambda: _state().txt, r"Write `str\(state\)`"),
    "a state generates": (lambda: _state().generate(), r"`continuous\(generator\)\(state\)`"),
    "the text of a state is split": (lambda: _state().split(), r"`str\(state\)`"),
    "the cache by its name in transformers": (lambda: _state().past_key_values, "`state.kv_cache`"),
    "a near attribute": (lambda: _state().logprob, "Did you mean 'logprobs'?"),
    "a continuation that was not called": (lambda: continuous(_text()).value, r"Call it first: `continuous\(generator\)\(prompt\)`"),
    "continuous twice": (lambda: continuous(continuous(_text())), "It is what `continuous` returns: call it"),
    "a generator as a prompt": (lambda: continuous(_text())(_text()), r"the state that it returns: `continuous\(second\)"),
    "a continuation as a prompt": (lambda: _text()(continuous(_text())), r"the state that it returns: `continuous\(second\)"),
    "a model as a prompt": (lambda: _text()(tiny()), "A generator has its model already"),
    "a chat as a prompt": (lambda: _text()(Chat(tiny()).user("Hi")), r"`chat.state` is a prompt"),
    "a continuation as a reply": (lambda: Chat(tiny()).user("Hi").assistant(continuous(_text())), "without `continuous`"),
    "a generator is added": (lambda: _state() + _text(), r"Instead of `state \+ generator` write `continuous\(generator\)\(state\)`"),
    "a continuation is added": (lambda: _state() + continuous(_text()), r"Instead of `state \+ generator`"),
    "a generator is added to a text": (lambda: "Hello " + _text(), r"Instead of `state \+ generator`"),
    "the text of a chat": (lambda: Chat(tiny()).text, "Write `chat.value`"),
    "a chat sends": (lambda: Chat(tiny()).send("Hi"), r"`chat.user\(text\).assistant\(generator\)`"),
    "a model generates": (lambda: tiny().generate("x"), r"`generate.text\(model\)\(prompt\)`"),
    "a template renders": (lambda: Template("x").render(), r"`template.run\(model"),
    "a function of another library": (lambda: generate.select, r"Write `generate.choice\(model, options\)`"),
    "a misspelled function": (lambda: generate.chioce, "Did you mean 'choice'?"),
    "a misspelled sampler": (lambda: samplers.multinominal, "Did you mean 'multinomial'?"),
    "a misspelled policy": (lambda: policies.bann, "Did you mean 'ban'?"),
    "a misspelled model": (lambda: models.transformer, "Did you mean 'transformers'?"),
    "a misspelled name of the package": (lambda: outlines_cont.continous, "Did you mean 'continuous'?"),
    "a misspelled pipeline": (lambda: pipelines.Extracter, "Did you mean 'Extractor'?"),
    "a character too far": (lambda: _state()[99], r"which has \d+ characters, got 99.*`state\[0, 0, :\]` is the first row"),
    "a token too far": (lambda: _state().tokens[99], r"which has \d+ tokens, got 99"),
    "a key that is a text": (lambda: _state()["a"], r"where `ids` are characters.*`state\[0, 0, :\]` is the first row"),
    "a misspelled function of a template": (lambda: Template("{{ chioce(['a']) }}").run(tiny()).check(), "Did you mean 'choice'?"),
    "a function of another template language": (
        lambda: Template("{{ generate('a') }}").run(tiny()).check(), "by which a template generates",
    ),
    "a misspelled filter": (lambda: Template("{{ x | uper }}"), "Did you mean 'upper'?"),
    "a misspelled method in a template": (lambda: Template("{{ x.uper() }}").run(tiny(), x="a").check(), "Did you mean 'upper'?"),
    "a misspelled key in a template": (lambda: Template("{{ x.lenght }}").run(tiny(), x={"length": 1}).check(), "Did you mean 'length'?"),
    "a misspelled capture in a template": (
        lambda: Template("Kind: {{ choice('kind', ['a']) }}{{ captures['knd'] }}").run(tiny()).check(), "Did you mean 'kind'?",
    ),
    "a misspelled capture": (lambda: Template("Kind: {{ choice('kind', ['a']) }}").run(tiny()).captures["knd"], "Did you mean 'kind'?"),
    "a capture of a template without any": (lambda: Template("Kind").run(tiny()).captures["kind"], "There are none"),
    "a misspelled language": (lambda: fsm.regexp, "Did you mean 'regex'?"),
    "a misspelled type": (lambda: fsm.types.emial, "Did you mean 'email'?"),
    "a misspelled draft": (lambda: generate.text(tiny(), draft="lookp"), "Did you mean 'lookup'?"),
    "a misspelled draft of a call": (lambda: _text()("a", draft="lokup"), "Did you mean 'lookup'?"),
    "a misspelled end": (lambda: generate.regex(tiny(), "a", end="fre"), "Did you mean 'free'?"),
    "a misspelled tool": (lambda: Chat(tiny(), tools=[weather]).user("Hi").assistant(tool_choice="wether"), "Did you mean 'weather'?"),
    "a misspelled tool among some": (
        lambda: Chat(tiny(), tools=[weather]).user("Hi").assistant(tool_choice=["auto", "wether"]), "Did you mean 'weather'?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_answered_with_what_to_write(slip: str) -> None:
    call, said = SLIPS[slip]
    with pytest.raises((AttributeError, TypeError, LookupError, OutlinesContError), match=said):
        call()


def _slipped(name: str, dice: random.Random) -> str:
    """A name with one letter that is left out, doubled, or exchanged with the next."""
    at = dice.randrange(1, len(name))
    return dice.choice(
        [name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]]
    )


OWNERS: dict[str, Callable[[], Any]] = {
    "a state": lambda: _state(), "a generator": lambda: _text(), "a continuation": lambda: continuous(_text()),
    "a chat": lambda: Chat(tiny()), "a model": lambda: tiny(), "a template": lambda: Template("x"),
    "a stream": lambda: continuous(_text()).stream("x"),
    **{module.__name__: lambda module=module: module for module in (
        outlines_cont, generate, samplers, policies, models, control, pipelines, templates,
    )},
}  # fmt: skip


@pytest.mark.parametrize("of", OWNERS)
def test_a_name_with_one_slip_is_suggested(of: str) -> None:
    owner = OWNERS[of]()
    dice = random.Random(f"slips of {type(owner).__name__}")
    names = [name for name in dir(owner) if not name.startswith("_") and len(name) > 4]
    for name in dice.sample(names, min(12, len(names))):
        slipped = _slipped(name, dice)
        if slipped in names:
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(owner, slipped)
        assert caught.value.name == slipped
        assert did_you_mean(slipped, names) in str(caught.value) or "Write" in str(caught.value)
        assert not hasattr(owner, "_private_" + name)


NAMED: dict[str, tuple[list[str], Callable[[str], Any]]] = {
    "fsm": ([name for name in fsm.__all__ if len(name) > 4], lambda name: getattr(fsm, name)),
    "captures": (["customer", "quantity", "address"], NearKeys({"customer": 1, "quantity": 2, "address": 3}).__getitem__),
    "an option of some texts": (
        ["required", "weather", "forecast"],
        lambda name: check_one_of("x", name, ["required", "weather", "forecast"]),
    ),
    "a key in a template": (
        ["customer", "quantity", "address"],
        lambda name: Template(f"{{{{ x.{name} }}}}").run(tiny(), x={"customer": 1, "quantity": 2, "address": 3}).check(),
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_name_with_one_slip_is_answered_with_the_nearest(what: str) -> None:
    names, ask = NAMED[what]
    dice = random.Random(what)
    for name in [dice.choice(names) for _ in range(12)]:
        slipped = _slipped(name, dice)
        if slipped not in names:
            with pytest.raises((AttributeError, LookupError, OutlinesContError)) as caught:
                ask(slipped)
            assert did_you_mean(slipped, names).strip() in str(caught.value)
            assert "Did you mean" in str(caught.value)


def test_the_error_of_a_property_is_not_hidden() -> None:
    class Broken(NearNames):
        @property
        def length(self) -> int:
            raise AttributeError("no cable")

    with pytest.raises(AttributeError, match="no cable"):
        _ = Broken().length


def test_a_name_that_is_like_no_other_has_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'zzzz'\.\Z"):
        _ = _state().zzzz


def test_a_value_that_is_none_says_why() -> None:
    cut = continuous(generate.json(tiny(), Order))("Record: ", max_tokens=4)
    with pytest.warns(NoValueWarning, match=r"was cut to '\{\"customer.*Raise `max_tokens`, or .*\.resume\(state\)") as found:
        assert cut.value is None
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cut.values == [[None]]
        assert not cut.finished.any()


def test_the_value_of_a_row_that_failed_is_its_error() -> None:
    failed = continuous(generate.text(tiny()))(["Hello", "x" * 40_000], max_tokens=1)
    one = failed.take([(1, 0)])
    with pytest.warns(NoValueWarning, match="the row has failed: .*context"):
        assert one.value is None


def test_values_that_are_there_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LengthWarning)
        assert isinstance(_state().value, str)
        assert continuous(generate.choice(tiny(), ["a", "b"]))("x").value in ("a", "b")
        two = _state().fork(2)
        assert two.value == two.values


def test_an_empty_text_after_a_space_is_the_end_that_the_model_chose() -> None:
    """As the page on troubleshooting says: nothing is lost, and a pattern of one character or more writes one."""
    prompt = "The capital of France is "
    state = continuous(_text())(prompt, stop_at="\n")
    assert (state.generated, state.stops, state.finish_reasons) == ("", [[None]], [["stop"]])
    assert str(continuous(generate.regex(tiny(), r"[^\n]+"))(prompt, max_tokens=8).generated).strip()
