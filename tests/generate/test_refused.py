"""What the library refuses before anything runs: a table of calls, each with the option that is named and what is said of it.

And the law behind the table: a value of any other type is taken or refused with a sentence, wherever it stands.
"""

from __future__ import annotations

import io
import math
import traceback
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from pydantic import BaseModel
from transformers import DynamicCache

import fsm
import outlines_cont
from outlines_cont import (
    BatchedExecutor,
    Branch,
    Chat,
    Engine,
    Guidance,
    SequenceState,
    Template,
    Thinking,
    Tokens,
    TokenSet,
    TokenStream,
    adapters,
    continuous,
    control,
    engine_of,
    generate,
    models,
    pipelines,
    policies,
    samplers,
)  # fmt: skip
from outlines_cont.checks import names_of
from outlines_cont.errors import ForkBudgetError, OptionError, OutlinesContError, UnknownOption
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import DRY, XTC, MinP, Mirostat, Temperature, TopK, TopP, beam_search, best_of, greedy, multinomial
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import VOCAB_SIZE, FakeTokenizer, random_model, tiny
from tests.saved_model import save_model

Make = Callable[..., Any]
IDS = torch.tensor([[1, 2, 3]])
_best, _beams = partial(best_of, 2), partial(beam_search, 2)
_ALL: tuple[Make, ...] = (greedy, multinomial, _best)
_DRAWN = _ALL[1:]


class Order(BaseModel):
    name: str


class _Unhashable(TopK):
    __hash__ = None  # type: ignore[assignment]


def _asked(**options: Any) -> Any:
    """What a script gets that asks for a piece."""

    async def script() -> None:
        await control.gen(regex="a{1,9}", **options)

    return control.run(random_model(), script, "the").check()


def _forked(count: int) -> Any:
    async def script() -> None:
        await control.fork(count)

    return control.run(random_model(), script, "the").check()


def _conversation_forks(n: int) -> Any:
    with BatchedExecutor(random_model()) as executor:
        return executor.create("the").fork(n)


def _state() -> SequenceState:
    return SequenceState(random_model(), ((StateRow.of_prompt([3, 4], RandomStream(0)),) * 3,), 0)


def _opened(**options: Any) -> HuggingFaceModel:
    return models.from_transformers(random_model().hugging_face, FakeTokenizer(), **options)


def _with(makes: tuple[Make, ...], option: str, *refused: tuple[Any, str]) -> list[tuple[Make, str, str]]:
    """Each of some values of an option for each of some functions, with what is said of it."""
    return [(lambda make=make, value=value: make(**{option: value}), option, said) for make in makes for value, said in refused]


_SAID = "Make one, such as `samplers.greedy()` or `samplers.multinomial()`."
REFUSED: list[tuple[Make, str | None, str]] = [
    # samplers
    *(
        (lambda sampler=sampler: generate.text(tiny(), sampler=sampler), "sampler", rf"{said}\Z")
        for sampler, said in (
            ("greedy", r"Write `samplers\.greedy\(\)`\."), (greedy, r"Write `samplers\.greedy\(\)`\."),
            (multinomial, r"Write `samplers\.multinomial\(\)`\."), (samplers.Multinomial, r"Write `samplers\.multinomial\(\)`\."),
            (best_of, r"Write `samplers\.best_of\(n\)`\."), ("beam_search", r"Write `samplers\.beam_search\(n\)`\."),
            ("hot", _SAID.replace("(", r"\(").replace(")", r"\)")), (3, _SAID.replace("(", r"\(").replace(")", r"\)")),
        )
    ),
    *_with((multinomial,), "n", (0, "got 0"), (True, "got True"), (-1, "got -1"), (1.0, "got 1.0")),
    *((lambda n=n: best_of(n), "n", "from 1 to 100,000 as `n`") for n in (0, -1, True, 1.0)),
    *((lambda n=n: beam_search(n), "beams", "from 1 to 100,000 as `beams`") for n in (0, -1, True, 1.0)),
    *_with((multinomial,), "top_k", (0, "1 or more, or None as `top_k`, got 0"), (2.0, "`top_k`, got 2.0")),
    *_with((multinomial,), "top_p", (0.0, "above 0 and at most 1, or None as `top_p`, got 0.0"), (1.1, "`top_p`, got 1.1")),
    *_with((multinomial,), "temperature", (0, r"for 0 use `greedy\(\)`"), ("hot", "`temperature`, got 'hot'")),
    *_with(_DRAWN, "typical_p", (0, "above 0 and at most 1, or None as `typical_p`, got 0"), (1.5, "`typical_p`, got 1.5")),
    *_with(_DRAWN, "top_a", (-0.1, "from 0 to 1, or None as `top_a`, got -0.1"), (math.nan, "`top_a`, got nan")),
    *_with(_DRAWN, "xtc", (0.1, r"expected `samplers.XTC\(...\)` or None as `xtc`, got 0.1")),
    *_with(_DRAWN, "dry", (Mirostat(), r"expected `samplers.DRY\(...\)` or None as `dry`, got Mirostat\(")),
    *_with(_DRAWN, "mirostat", (True, "None as `mirostat`, got True")),
    *_with(
        _DRAWN, "warpers", (TopK, r"expected a tuple of warpers as `warpers`"), ("top_k", "got 'top_k'"),
        (TopK(3), r"expected a tuple of warpers as `warpers`.*got TopK\(k=3\)"), ((TopK,), r"Make one, such as `TopK\(...\)`"),
        ((abs,), r"got <built-in function abs>. Derive your own from `samplers.Warper`"),
        ((_Unhashable(1),), r"hashable warpers.*frozen=True"), ((XTC(), XTC()), "at most one `XTC` among the warpers"),
    ),
    *((lambda make=make: make(xtc=XTC(), warpers=()), None, r"either `warpers` or `xtc`.*`XTC\(") for make in _DRAWN),
    *(
        (lambda make=make: make(warpers=(TopK(3),), temperature=0.5), None, r"either `warpers` or `temperature`.*`Temperature\(t=0.5\)` to")
        for make in _DRAWN
    ),
    *(
        row for option in ("repetition_penalty", "frequency_penalty", "presence_penalty")
        for row in _with(_ALL, option, *((x, f"`{option}`, got {x!r}") for x in (math.nan, math.inf, "1", True)))
    ),
    *_with((*_ALL, _beams)[:3], "repetition_penalty", (0, "`repetition_penalty`, got 0")),
    *_with(
        _ALL, "logit_bias", ({5: math.nan}, "for token 5 .*`logit_bias`, got nan"),
        ({5: -math.inf}, "-100 is as good as minus infinity.*`logit_bias`, got -inf"),
        ({"5": 1.0}, "ints of 0 or more, as `logit_bias`, got '5'"), ({1: 1.0, "5": 1.0}, "got '5'"), ({-1: 1.0}, "got -1"),
        ({True: 0}, "`logit_bias`"), ([(1, 1.0)], "expected a mapping from token ids"),
    ),
    (lambda: XTC(threshold=0), None, "a `threshold` from 0.000001 to 1 as `xtc`, got 0"),
    (lambda: XTC(probability=1.01), None, "a `probability` from 0 to 1 as `xtc`, got 1.01"),
    (lambda: XTC(keep=[1]), None, r"as `keep` as `xtc`, got \[1\]"),  # type: ignore[arg-type]
    (lambda: Mirostat(tau=0), None, "a `tau` above 0 and at most 100 as `mirostat`, got 0"),
    (lambda: Mirostat(eta=math.inf), None, "an `eta` from 0 to 10 as `mirostat`, got inf"),
    (lambda: DRY(multiplier=-1), None, "a `multiplier` from 0 to 1000 as `dry`, got -1"),
    (lambda: DRY(base=0.9), None, "a `base` from 1 to 100 as `dry`, got 0.9"),
    (lambda: DRY(allowed_length=0), None, "as `allowed_length` as `dry`, got 0"),
    (lambda: DRY(range=2.5), None, "or None as `range` as `dry`, got 2.5"),  # type: ignore[arg-type]
    (lambda: DRY(breakers=["\n"]), None, r"as `breakers` of `DRY`, got \['\\n'\]\. .*breaking_at\(model\.tokenizer"),  # type: ignore[arg-type]
    (lambda: DRY(breakers=("\n",)), None, "as `breakers` of `DRY`"),  # type: ignore[arg-type]
    (lambda: DRY().breaking_at("gpt2", ["\n"]), None, r"`model\.tokenizer`, as `tokenizer`, got str"),  # type: ignore[arg-type]
    (lambda: DRY().breaking_at(tiny().tokenizer, [""]), None, "texts that are not empty"),
    *((make, None, "as `(top_k|top_p|min_p|temperature)`, got") for make in (
        lambda: TopK(0), lambda: TopP(0.0), lambda: MinP(2), lambda: Temperature(math.nan)
    )),
    # models
    *(
        (lambda name=name: getattr(generate, name)(Order, tiny()), None, rf"Write `generate\.{name}\(model, \.\.\.\)`")
        for name in ("cfg", "choice", "format", "fsm", "json", "regex")
    ),
    *(
        (lambda wrong=wrong: generate.choice(wrong, ["a"]), None, "expected a model as the first argument")
        for wrong in ("gpt2", ["a"], None)
    ),
    (lambda: generate.fsm(tiny(), 5), None, "got int"),  # type: ignore[arg-type]
    (lambda: generate.choice(tiny(), []), None, "at least one"),
    (lambda: generate.regex(tiny(), "(ab"), None, "unclosed|unterminated|missing"),
    (lambda: generate.regex(tiny(), r"(a)\1"), None, "back-reference"),
    (lambda: generate.json(tiny(), {"type": "strnig"}), None, "'string'"),
    (lambda: generate.fsm(tiny(), fsm.regex("a") & fsm.regex("b")), None, "no text satisfies"),
    (lambda: continuous(tiny()), None, "expected a generator, such as `generate.text"),  # type: ignore[call-overload]
    (lambda: models.transformers(""), None, "hub id"),
    *((lambda d=d: models.tiny(device=d), None, f"such as 'cpu', 'cuda'.*got {d!r}") for d in ("gpu", "", "cuda:x")),
    *_with((_opened,
            partial(models.transformers, "no/model")), "kv_budget_bytes",
           *((value, "a number of bytes") for value in (0, -1, True))),
    *_with((models.tiny, models.tiny_vision, partial(models.transformers, "no/model"),
            _opened), "prefix_cache_bytes",
           *((value, r"as `prefix_cache_bytes`, got .* 0 turns the reuse of prefixes off") for value in (-1, 2.5, True, "1 GB"))),
    (lambda: setattr(random_model(), "prefix_cache", None), None, r"model\.prefix_cache\.max_bytes = 0"),
    (lambda: setattr(random_model().prefix_cache, "max_bytes", "0"), None, "expected a number of bytes"),
    # states and calls
    (lambda: SequenceState.from_cache(tiny(), [1, 2, 3], DynamicCache()), "token_ids", "as `token_ids`, got"),  # type: ignore[arg-type]
    (lambda: SequenceState.from_cache(tiny(), IDS, None), "cache", "as `cache`, got"),  # type: ignore[arg-type]
    (lambda: SequenceState.from_cache(tiny(), IDS, DynamicCache(), attention_mask=[1]), "attention_mask", "as `attention_mask`"),  # type: ignore[arg-type]
    *(
        (lambda i=i: SequenceState.from_cache(random_model(), torch.tensor([[3, i]]), DynamicCache()), None, f"from 0 to {VOCAB_SIZE - 1}")
        for i in (-1, VOCAB_SIZE)
    ),
    (lambda: _state().best(4), None, "from 1 to 3"),
    *((lambda text=text: Tokens.of(text), "text", "Token ids are given as a list") for text in (5, [1, 2], b"a", None)),
    *_with((lambda heal: generate.text(random_model())("the", max_tokens=1, heal=heal),), "heal",
           *((value, "expected True or False as `heal`") for value in ("yes", 1, None))),
    (lambda: generate.text(tiny())("a", guidance=("neg", 2)), None, r"got \('neg', 2\)"),
    *((lambda s=s: generate.text(random_model(), sampler=s).stream("a"), "sampler", "to stream its text: a search chooses at the end")
      for s in (best_of(2), beam_search(2))),
    *((lambda text=text: generate.text(tiny(), policies=text), "policies", "got b?'ab'") for text in ("ab", b"ab")),
    *((lambda ids=ids: TokenSet.of(ids), None, "token id") for ids in ([-1], [2**24], [2**40], [2**70], [1.5], ["a"], "ab", 7, None)),
]  # fmt: skip


@pytest.mark.parametrize(("call", "option", "said"), REFUSED)
def test_what_cannot_be_is_refused_with_what_was_expected(call: Make, option: str | None, said: str) -> None:
    with pytest.raises((OptionError, TypeError, ValueError), match=said) as refused:
        call()
    assert option is None or option == refused.value.option  # type: ignore[attr-defined]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match="no CUDA device"):
        models.tiny(device="cuda")


def test_what_no_text_satisfies_is_explained() -> None:
    with pytest.raises(fsm.SchemaError, match="a value of the class Order.* Pass the class, `Order`"):
        generate.json(tiny(), Order(name="Ana"))
    with pytest.raises(fsm.EmptyLanguage, match="a lookbehind at the beginning: `regex` matches the whole text"):
        generate.regex(tiny(), "(?<=a)b")


@pytest.mark.parametrize(
    ("call", "option", "advice"),
    [
        (lambda m, o: samplers.multinomial(**o), "topk", "options of `multinomial` .* Did you mean 'top_k'?"),
        (lambda m, o: samplers.greedy(**o), "temprature", "options of `greedy` "),
        (lambda m, o: samplers.beam_search(2, **o), "length_penalti", "Did you mean 'length_penalty'?"),
        (lambda m, o: models.tiny(**o), "dtyp", "options of `tiny` .* Did you mean 'dtype'?"),
        (lambda m, o: models.from_transformers(m, m, **o), "kv_budget", "Did you mean 'kv_budget_bytes'?"),
        (lambda m, o: generate.text(m, **o), "samplr", "options of `text` .* Did you mean 'sampler'?"),
        (lambda m, o: generate.json(m, Order, **o), "whitespac", "options of `json` .* Did you mean 'whitespace'?"),
        (lambda m, o: generate.cfg(m, "start: A", **o), "stric", "options of `cfg` .* Did you mean 'strict'?"),
        (lambda m, o: policies.ban(["a"], **o), "ignorecase", "Did you mean 'ignore_case'?"),
        (lambda m, o: policies.replace({"a": "b"}, **o), "atmost", "Did you mean 'at_most'?"),
        (lambda m, o: control.run(m, None, "a", **o), "budgets", "Did you mean 'budget'?"),
        (lambda m, o: control.arun(m, None, "a", **o), "budgets", "options of `arun` .* Did you mean 'budget'?"),
        (lambda m, o: generate.text(m, **o), "max_tokens", "Give it to the call"),
        (lambda m, o: generate.choice(m, ["a"], **o), "guidance", "Give it to the call"),
        (lambda m, o: generate.text(m, **o), "max_new_tokens", "option of a call: Write `max_tokens`"),
        (lambda m, o: generate.text(m, **o), "temperature", "Give it to the sampler"),
        (lambda m, o: generate.text(m)("a", **o), "tool", r"chat\.assistant\(tools=\[function\]\)"),
        (lambda m, o: generate.text(m)("a", **o), "tools", "Tools belong to conversations"),
        (lambda m, o: generate.text(m)("a", **o), "sampler", r"generate\.text\(model, sampler=...\)"),
        (lambda m, o: generate.text(m)("a", **o), "whitespace", r"generate\.json\(model, schema, whitespace=...\)"),
    ],
)
def test_an_option_that_there_is_none_of_is_named_with_what_was_meant(call: Callable[[Any, Any], Any], option: str, advice: str) -> None:
    with pytest.raises(UnknownOption, match=advice) as refused:
        call(tiny(), {option: 5})
    assert option == refused.value.option
    assert f"got `{option}`" in str(refused.value)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("devise", "Did you mean 'device'?"),
        ("kv_budget", "Did you mean 'kv_budget_bytes'?"),
        ("atn_implementation", "Did you mean 'attn_implementation'?"),
        ("torch_dtype", "Write `dtype`."),
        ("load_in_4bit", "quantization_config"),
        ("nothing_like_it", "options of `models.transformers`"),  # transformers says so
    ],
)
def test_an_option_of_loading_that_there_is_none_of_is_named(tmp_path: Path, option: str, advice: str) -> None:
    saved = save_model(tmp_path)
    with pytest.raises(UnknownOption, match=advice) as refused:
        models.transformers(saved, **{option: 5})
    assert option == refused.value.option


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda model: generate.regex(model, "a", samplers.greedy()), "`regex` by name, such as `sampler=...`, got 3 .* `model`, `patt"),
        (lambda model: generate.json(model, {}, samplers.greedy(), 5), "of `json` by name, such as `sampler=...`, got 4 "),
        (lambda _: samplers.multinomial(2, 0.5), "of `multinomial` by name, such as `top_k=...`, got 2 .* takes `n`"),
        (lambda _: models.tiny("cpu"), "of `tiny` by name, such as `device=...`, got 1 arguments by position, where it takes none"),
    ],
)  # fmt: skip
def test_options_that_are_given_by_position_are_told_to_have_names(call: Any, told: str) -> None:
    with pytest.raises(UnknownOption, match=told) as refused:
        call(random_model())
    assert isinstance(refused.value, TypeError)


# -- bounds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "option", "lowest", "highest"),
    [
        *((make, "repetition_penalty", 1 / 1000, 1000) for make in _ALL),
        *((make, option, -10_000, 10_000) for make in _ALL for option in ("frequency_penalty", "presence_penalty")),
        *((make, "top_p", math.nextafter(0, 1), 1) for make in _DRAWN),
        *((make, "min_p", 0, 1) for make in _DRAWN),
        *((make, "temperature", math.nextafter(1e-30, 1), math.nextafter(1e30, 0)) for make in _DRAWN),
        *((make, "length_penalty", -10, 10) for make in (_beams,)),
    ],
)
def test_a_bound_is_within_and_the_next_number_beyond_is_not(make: Callable[..., Any], option: str, lowest: float, highest: float) -> None:
    for value in (lowest, highest):
        make(**{option: value})
    for value in (math.nextafter(lowest, -math.inf), math.nextafter(highest, math.inf), math.nan):
        with pytest.raises(OptionError, match=f"`{option}`") as caught:
            make(**{option: value})
        assert caught.value.option == option


@pytest.mark.parametrize("make", _ALL)
def test_a_bias_is_bounded_for_every_token(make: Callable[..., Any]) -> None:
    within, beyond = {0: 10_000, 7: -10_000}, math.nextafter(10_000, math.inf)
    assert make(logit_bias=within).penalties.logit_bias == ((0, 10_000), (7, -10_000))
    for bias in ({0: beyond}, {7: -beyond}, {1: 0, 5: beyond}):
        with pytest.raises(OptionError, match="`logit_bias`"):
            make(logit_bias=bias)


@pytest.mark.parametrize(
    ("option", "lowest", "act"),
    [
        ("n", 1, lambda value: _state().fork(value)),
        ("n", 1, lambda value: _state().best(value)),
        ("n", 1, _conversation_forks),
        ("count", 1, _forked),
        ("max_tokens", 1, lambda value: continuous(generate.text(random_model()))("the", max_tokens=value)),
        ("max_tokens", 1, lambda value: _asked(max_tokens=value)),
        ("temperature", 0, lambda value: _asked(temperature=value)),
        ("max_retries", 0, lambda value: generate.json(random_model(), {"enum": [1]}, max_retries=value)),
        ("max_rows", 1, lambda value: Engine(random_model(), max_rows=value)),
        ("kept_logits_bytes", 0, lambda value: BatchedExecutor(random_model(), kept_logits_bytes=value)),
        ("max_batch_tokens", 1, lambda value: Engine(random_model(), max_batch_tokens=value)),
        *(
            (name, 1, lambda value, name=name: control.Budget(**{name: value}))
            for name in ("tokens", "steps", "forks", "kv_bytes", "seconds", "callback_seconds", "characters")
        ),
    ],
)
def test_the_lowest_number_of_an_option_is_within_and_what_is_below_is_named(option: str, lowest: int, act: Callable[[Any], Any]) -> None:
    act(lowest)
    for value in (lowest - 1, -7, True, "1", math.nan):
        with pytest.raises(OptionError, match="expected") as caught:
            act(value)
        assert option == caught.value.option


@pytest.mark.parametrize(
    ("option", "most", "act"),
    [
        ("n", 33_333, lambda value: _state().fork(value)),
        pytest.param("n", 33_333, lambda value: SequenceState.stack([_state(), _state()]).fork(value), marks=pytest.mark.slow),
        ("n", 100_000, lambda value: samplers.multinomial(value)),
        ("n", 100_000, lambda value: samplers.best_of(value)),
        ("beams", 100_000, samplers.beam_search),
        ("samples", 100_000, lambda value: pipelines.Extractor(random_model(), {"enum": [1]}, samples=value)),
    ],
)
def test_more_samples_than_memory_holds_are_refused_before_there_is_one(option: str, most: int, act: Callable[[Any], Any]) -> None:
    act(most)
    for value in (most + 1, 10**9, 10**30):
        with pytest.raises(OptionError, match=rf"expected an int from [01] to {most:,} as `{option}`, got {value}"):
            act(value)


def test_forks_without_number_are_refused_before_there_is_one() -> None:
    for act in (_conversation_forks, Chat(tiny()).user("a").fork):
        with pytest.raises(OptionError, match="expected an int from 1 to 100,000( or None)? as `n`, got 1000000000"):
            act(10**9)
    with pytest.raises(ForkBudgetError):
        _forked(10**9)


def test_the_largest_that_is_allowed_is_taken() -> None:
    assert _state().best(3).shape == (1, 3, 2)
    for token_id in (0, VOCAB_SIZE - 1):
        ids = torch.tensor([[3, token_id]])
        assert [3, token_id] == SequenceState.from_cache(random_model(), ids, DynamicCache()).token_ids.flatten().tolist()


# -- the law ------------------------------------------------------------------------------------------------------------

LOOP: list[Any] = []
LOOP.append(LOOP)
CIRCLE: dict[str, Any] = {"type": "object"}
CIRCLE["properties"] = {"a": CIRCLE}
WRONG = [
    object(), 1.5, -1, "zz\0", None, [], [None], b"x", {"a": 1}, torch.zeros(2), math.nan, int, samplers.greedy,
    "\ud800", True, np.int64(3), np.ones((1, 1)), CIRCLE, {1, 2},
]  # fmt: skip
ODD = [LOOP, iter([1]), 10**400]  # apart, as any number of forks is taken
ARRAYS = [
    np.arange(3),
    pandas.Series(["a", "b"]),
    pandas.DataFrame({"a": ["b"]}),
    deque(["a"]),
    Path("a"),
]  # without a truth value, or slices
BRIEF = [object(), 1.5, "zz", [None], {"a": 1}, True, *ARRAYS]
"""For the options that the table leaves out."""
_SHARES = 10
"""The calls of the law are made when it runs: it has a test for each share of them, not for each call."""


@cache
def _calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Return a correct call of each public function, as function, positions and options."""
    model, stream = random_model(), TokenStream(FakeTokenizer())
    text = generate.text(model)
    state = continuous(text)("the name", max_tokens=2)
    state.save(saved := io.BytesIO())
    written = continuous(generate.json(model, {"const": {"a": 1}}))("x")
    executor = BatchedExecutor(model)
    conversation = executor.create("abc")
    executor.infer()

    async def script() -> None:
        await control.gen(max_tokens=1)

    logits = torch.zeros(VOCAB_SIZE)
    numbers = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.5, "top_a": 0.1}
    penalties = {"logit_bias": {1: 1.0}, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    objects = {"dry": None, "mirostat": None, "xtc": None, "warpers": None}
    options = {"max_tokens": 1, "min_tokens": 0, "stop_at": "x", "stop_token_ids": (), "policies": (), "draft": None}
    flags = {"rng": 1, "heal": False, "keep_stop": False, "guidance": None}
    return {
        "generate.text": (generate.text, (model,), {"sampler": samplers.greedy(), "policies": (), "draft": None}),
        "generate.regex": (generate.regex, (model, "a"), {"force": True}),
        "generate.choice": (generate.choice, (model, ["a"]), {}),
        "generate.json": (generate.json, (model, {"type": "integer"}), {"max_retries": 2}),
        "generate.format": (generate.format, (model, int), {}),
        "generate.cfg": (generate.cfg, (model, 'start: "a"'), {"start": "start"}),
        "generate.fsm": (generate.fsm, (model, fsm.regex("a")), {"max_retries": 1}),
        "generator": (text, ("a",), {**options, **flags}),
        "stream": (lambda *a, **o: [*text.stream(*a, max_tokens=1, **o)], ("a",), {"events": True, "top": 0, "retract": False}),
        "continuous": (continuous, (text,), {}),
        "resume": (continuous(text).resume, (state,), {"max_tokens": 1}),
        "greedy": (samplers.greedy, (), penalties),
        "multinomial": (samplers.multinomial, (1,), numbers | objects),
        "best_of": (samplers.best_of, (2,), {"top_k": 3}),
        "beam_search": (samplers.beam_search, (2,), {"length_penalty": 0.0}),
        "DRY": (samplers.DRY, (), {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "breakers": ()}),
        "XTC": (samplers.XTC, (), {"threshold": 0.1, "probability": 0.5}),
        "Mirostat": (samplers.Mirostat, (), {"tau": 5.0, "eta": 0.1}),
        "ban": (policies.ban, (["x"],), {"ignore_case": False}),
        "replace": (policies.replace, ({"a": "b"},), {"at_most": 1}),
        "budgets": (models.from_transformers, (model.hugging_face, model.tokenizer), {"kv_budget_bytes": -1}),
        "stack": (SequenceState.stack, ([state],), {}),
        "from_cache": (SequenceState.from_cache, (model, torch.tensor([[1, 2]]), DynamicCache()), {"rng": 1}),
        "load": (SequenceState.load, ("/nonexistent/x", model), {}),
        "loaded": (lambda model: SequenceState.load(io.BytesIO(saved.getvalue()), model), (model,), {}),
        "save": (state.save, ("/nonexistent/x",), {"kv": True}),
        "fork": (state.fork, (2,), {"same": False}),
        "take": (state.take, ([],), {}),
        "best": (state.best, (1,), {}),
        "append": (state.append, ("x",), {"boundary": "as_is"}),
        "to": (state.to, ("cpu",), {}),
        "TokenStream": (TokenStream, (model.tokenizer,), {"stop_at": "x", "stop_token_ids": (), "prompt": "a"}),
        "push": (stream.push, (70,), {}),
        "push_logits": (stream.push_logits, (logits, samplers.multinomial()), {"mask": None, "rng": 1}),
        "uniform": (stream.push_logits, (logits, samplers.multinomial()), {"uniform": 0.5}),
        "flush": (stream.flush, ("length",), {}),
        "rewind": (stream.push(70).rewind, (1,), {}),
        "TokenSet.of": (TokenSet.of, ([1],), {}),
        "Branch": (Branch, (), {"backtrack": 0, "ff_tokens": [[1]], "sample_mask": None, "temperature": None}),
        "engine_of": (engine_of, (model,), {}),
        "Engine": (Engine, (model,), {"max_rows": 1, "max_batch_tokens": 5}),
        "Guidance": (Guidance, ("no", 2.0), {}),
        "Tokens.of": (Tokens.of, ("x",), {"special": False}),
        "Budget": (control.Budget, (), {"tokens": 3, "forks": 2, "seconds": 1.0}),
        "Template": (Template, ("a",), {}),
        "Template.run": (
            Template("{{ x }}{{ gen('a', max_tokens=1) }}").run,
            (model,),
            {"x": "a", "rng": 1, "sampler": None, "budget": None},
        ),
        "rows": (Template("{{ gen('a', max_tokens=1) }}").run, (model, [{}]), {"state": None, "rng": None}),
        "BatchedExecutor": (BatchedExecutor, (model,), {"seed": 1, "kept_logits_bytes": 0}),
        "create": (executor.create, ("a",), {"seed": 1}),
        "load a conversation": (executor.load, ("/nonexistent/x",), {}),
        "save a conversation": (conversation.save, ("/nonexistent/x",), {"kv": True}),
        "prompt": (lambda *a: executor.create("a").prompt(*a), ("a",), {}),
        "constrain": (lambda *a: executor.create("a").constrain(*a), ("a",), {}),
        "logits": (conversation.logits, (-1,), {}),
        "sample": (conversation.sample, (None,), {"mask": None, "scores": None}),
        "fork a conversation": (lambda n, same: executor.create("a").fork(n, same=same), (2,), {"same": False}),
        "rewind a conversation": (lambda *a: executor.create("ab").rewind(*a), (1,), {}),
        "rewind_to": (conversation.rewind_to, (conversation.mark(),), {}),
        "drop": (lambda *a: executor.create("abc").drop(*a), (1, 2, "recompute"), {}),
        "control.run": (control.run, (model, script, "a"), {"rng": 1, "sampler": None, "budget": None, "shared": None, "policies": ()}),
        "control.start": (control.start, (model, script, "a"), {"rng": 1, "budget": None}),
        "fixed": (lambda text: control.run(model, lambda: control.fixed(text), "a", check=True), ("x",), {}),
        "control.fork": (lambda count: control.run(model, lambda: control.fork(count), "a"), (2,), {}),
        "gen": (
            lambda **o: control.run(model, lambda: control.gen(**o), "a"),
            (),
            {"max_tokens": 1, "stop_at": "x", "name": "a", "draft": None},
        ),
        "gen regex": (lambda regex: control.run(model, lambda: control.gen(regex=regex), "a"), ("a",), {}),
        "gen choice": (lambda choice: control.run(model, lambda: control.gen(choice=choice), "a"), (["a"],), {}),
        "gen json": (lambda json: control.run(model, lambda: control.gen(json=json), "a"), ({"const": 1},), {}),
        "Thinking": (Thinking, (), {"begin": "a", "end": "b", "max_tokens": 3, "sampler": None}),
        "thinking": (generate.text, (model,), {"thinking": None}),
        "Chat": (Chat, (tiny(),), {}),
        "message": (lambda content: str(Chat(tiny()).user([content]).state), ("a",), {}),
        "key of a message": (lambda value: Chat(tiny()).message({"role": "user", "content": "a", "name": value}), ("a",), {}),
        "calls": (lambda value: Chat(tiny()).message({"role": "assistant", "content": "", "tool_calls": value}), ([],), {}),
        "result": (lambda value: _called().tool(value), ("a",), {}),
        "user": (Chat(tiny()).user, ("a",), {}),
        "system": (Chat(tiny()).system, ("a",), {}),
        "assistant": (Chat(tiny()).user("a").assistant, (None,), {"max_tokens": 1, "rng": 1, "tools": None, "tool_choice": "auto"}),
        "tool": (Chat(tiny()).user("a").tool, ("a",), {}),
        "Extractor": (
            pipelines.Extractor,
            (model, {"const": 1}, "{{ text }}"),
            {"max_tokens": 1, "batch_size": 1, "samples": 0, "seed": 0, "chat": None},
        ),
        "logits_processor": (adapters.logits_processor, (fsm.regex("a"), tiny().tokenizer), {"eos_token_ids": None, "vocab_size": None}),
        "alternatives": (written.alternatives, ("",), {"max_prefixes": 3}),
        "probabilities": (generate.choice(model, ["a", "b"]).probabilities, ("a",), {}),
        "index": (state.__getitem__, (slice(0, 1),), {}),
        "crop": (state.crop, (slice(0, 1),), {}),
        "inspect": (state.inspect, ("/nonexistent/x",), {"top": 0}),
        "fsm.regex": (fsm.regex, ("a",), {}),
        "fsm.choice": (fsm.choice, (["a"],), {}),
        "fsm.json_schema": (fsm.json_schema, ({"type": "integer"},), {}),
        "fsm.grammar": (fsm.grammar, ('start: "a"', "start"), {}),
        "fsm.gbnf": (fsm.gbnf, ('root ::= "a"',), {}),
        "fsm.schema_text": (fsm.schema_text, ({"type": "integer"},), {}),
        "fsm.substring": (fsm.substring, ("abc",), {}),
        "fsm.until": (fsm.until, ("x",), {}),
        "fsm.TokenFSM": (fsm.TokenFSM, (fsm.regex("a"), fsm.Vocabulary([None, b"a", b"b"], [0])), {}),
        "fsm.Vocabulary": (fsm.Vocabulary, ([None, b"a"], [0]), {}),
        "fsm.repeat": (fsm.regex("a").repeat, (1, 2), {}),
        "fsm.accepts": (fsm.regex("a").accepts, ("a",), {}),
    }


def _called() -> Chat:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
    chat = Chat(tiny(), tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}], tool_form="generic").user("a")
    return chat.message({"role": "assistant", "content": "", "tool_calls": [call]})


def _others(call: Callable[..., Any], num_positions: int, options: dict[str, Any]) -> list[str]:
    """Return the options of a function that the table leaves out, so that new ones are tried, too."""
    by_place = [name for name, one in signature(call).parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [name for name in names_of(call) if name not in (*by_place[:num_positions], *options)]


def _is_explained(error: Exception) -> bool:
    """Whether an error is one of ours, or a built-in one that a line of ours raises with a sentence."""
    if isinstance(error, OutlinesContError | fsm.FSMError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = any(Path(package.__file__).parent in Path(last.filename).parents for package in (fsm, outlines_cont))
    return isinstance(error, TypeError | ValueError | IndexError) and is_ours and (last.line or "").startswith("raise")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("share", range(_SHARES))
def test_a_value_of_any_other_type_is_taken_or_refused_with_a_sentence_wherever_it_stands(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some of the values are paths
    raw = []
    for name, (call, positions, options) in [*_calls().items()][share::_SHARES]:
        for place in (*range(len(positions)), *options, *_others(call, len(positions), options)):
            listed = isinstance(place, int) or place in options
            for wrong in BRIEF if not listed else WRONG if name.startswith("fork") else WRONG + ODD + ARRAYS:
                args, named = [*positions], dict(options)
                (args if isinstance(place, int) else named)[place] = wrong  # type: ignore[call-overload]
                try:
                    call(*args, **named)
                except Exception as error:
                    raw += [] if _is_explained(error) else [(name, place, wrong, error)]
    assert not raw
