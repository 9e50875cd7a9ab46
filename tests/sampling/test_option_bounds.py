"""Options at the bounds of their ranges: the bound itself is taken, what is just beyond is refused, and the option is named."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from outlines_cont import (
    DEFAULT_MAX_TOKENS,
    BatchedExecutor,
    CompletionTree,
    SequenceState,
    continuous,
    control,
    generate,
    policies,
    samplers,
)
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.engine.engine import Engine
from outlines_cont.errors import IncompleteOutput, LengthWarning, OptionError
from outlines_cont.generation.options import checked_policies
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import random_model

_ALL = (samplers.greedy, samplers.multinomial, lambda **options: samplers.best_of(2, **options))
_DRAWN = _ALL[1:]
_BEAMS = (lambda **options: samplers.beam_search(2, **options),)
_MANY = (lambda n: samplers.multinomial(n), lambda n: samplers.best_of(n), lambda n: samplers.beam_search(n))


@pytest.mark.parametrize(
    ("make", "option", "lowest", "highest"),
    [
        *((make, "repetition_penalty", 1 / 1000, 1000) for make in _ALL),
        *((make, option, -10_000, 10_000) for make in _ALL for option in ("frequency_penalty", "presence_penalty")),
        *((make, "top_p", math.nextafter(0, 1), 1) for make in _DRAWN),
        *((make, "min_p", 0, 1) for make in _DRAWN),
        *((make, "temperature", math.nextafter(1e-30, 1), math.nextafter(1e30, 0)) for make in _DRAWN),
        *((make, "length_penalty", -10, 10) for make in _BEAMS),
    ],
)
def test_a_bound_is_within_and_the_next_number_beyond_is_not(
    make: Callable[..., Any], option: str, lowest: float, highest: float
) -> None:
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
    for bias in ({0: beyond}, {7: -beyond}, {1: 0, 5: beyond}, {-1: 0}, {True: 0}):
        with pytest.raises(OptionError, match="`logit_bias`"):
            make(logit_bias=bias)


@pytest.mark.parametrize("make", _MANY)
def test_one_sample_and_one_beam_are_enough(make: Callable[..., Any]) -> None:
    make(1)
    for value in (0, -1, True, 1.0):
        with pytest.raises(OptionError):
            make(value)
    samplers.multinomial(top_k=1)


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
        ("depth", 1, lambda value: CompletionTree(random_model(), "the", depth=value)),
        ("every", 1, lambda value: CompletionTree(random_model(), "the", depth=2, every=value)),
        ("max_rows", 1, lambda value: Engine(random_model(), max_rows=value)),
        ("max_batch_tokens", 1, lambda value: Engine(random_model(), max_batch_tokens=value)),
        *(
            (name, 1, lambda value, name=name: control.Budget(**{name: value}))
            for name in ("tokens", "steps", "forks", "kv_bytes", "seconds", "callback_seconds")
        ),
    ],
)
def test_the_lowest_number_of_an_option_is_within_and_what_is_below_is_named(
    option: str, lowest: int, act: Callable[[Any], Any]
) -> None:
    act(lowest)
    for value in (lowest - 1, -7, True, "1", math.nan):
        with pytest.raises(OptionError, match="expected") as caught:
            act(value)
        assert option == caught.value.option


def test_a_tree_has_at_most_1024_leaves() -> None:
    assert CompletionTree(random_model(), "the", depth=11, every=1).num_sampled == 0
    assert CompletionTree(random_model(), "the", depth=110, every=10).num_sampled == 0
    for depth, every in ((12, 1), (111, 10)):
        with pytest.raises(OptionError, match=r"1,024 leaves.*2 \*\* 11"):
            CompletionTree(random_model(), "the", depth=depth, every=every)


def test_as_many_samples_are_the_best_as_there_are() -> None:
    assert _state().best(3).shape == (1, 3, 2)
    with pytest.raises(OptionError, match="from 1 to 3"):
        _state().best(4)


def test_ids_of_a_cache_are_those_of_the_vocabulary() -> None:
    model = random_model()
    for token_id in (0, model.vocab_size - 1):
        ids = torch.tensor([[3, token_id]])
        assert [3, token_id] == SequenceState.from_cache(model, ids, DynamicCache()).token_ids.flatten().tolist()
    for token_id in (-1, model.vocab_size):
        with pytest.raises(OptionError, match=f"from 0 to {model.vocab_size - 1}"):
            SequenceState.from_cache(model, torch.tensor([[3, token_id]]), DynamicCache())


def test_a_piece_has_a_length_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by a limit that nobody gave, a text says so; by one that was given, or by the context, it does not."""
    monkeypatch.setattr("outlines_cont.generation.options.DEFAULT_MAX_TOKENS", 5)
    model = random_model()
    write = continuous(generate.regex(model, "[ab]{30,}"))
    with pytest.warns(LengthWarning, match="2 of 2 texts were cut after 5 tokens") as told:
        cut = write(["a", "b"])
    assert __file__ == told[0].filename  # the line of the user
    with pytest.warns(LengthWarning, match="1 of 1 texts"):
        more = write.resume(cut.take([(0, 0)]))
    assert [len(row.token_ids) for row in (cut.rows[0][0], more.rows[0][0])] == [7, 12]
    with pytest.warns(LengthWarning), pytest.raises(IncompleteOutput, match="Raise `max_tokens`"):
        generate.regex(model, "[ab]{30,}")("a")
    with pytest.warns(LengthWarning, match="cut after 7 tokens"):  # `min_tokens` wants more
        write("a", min_tokens=7)
    with warnings.catch_warnings(action="error"):
        assert write("a", max_tokens=5).finish_reasons == [["length"]]
        assert write("a", max_tokens=None).finish_reasons == [["stop"]]
        assert continuous(generate.regex(model, "[ab]{4}"))("a").finish_reasons == [["constraint"]]


def test_the_command_line_has_the_same_length() -> None:
    assert ExtractOptions(input="", schema="").most_tokens == DEFAULT_MAX_TOKENS == 1024


def test_one_policy_needs_no_list_and_a_text_is_none() -> None:
    ban = policies.ban("a")
    assert checked_policies(ban) == checked_policies([ban]) == checked_policies((ban,)) == (ban,)
    for text in ("ab", b"ab"):
        with pytest.raises(OptionError, match="got b?'ab'"):
            checked_policies(text)
