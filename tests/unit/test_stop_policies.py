"""Policies that end a piece: stop texts that begin in the prompt, stop tokens, a least number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outlines_cont import continuous, generate, samplers
from outlines_cont.engine.branch import TokenSet
from outlines_cont.engine.engine import Engine
from outlines_cont.engine.job import Job
from outlines_cont.engine.policy import Policy
from outlines_cont.engine.row import Row
from outlines_cont.errors import DeadEnd, OptionError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.meter import Meter
from outlines_cont.policies import Constraint, FreeText, MinTokens, StopAt, StopTokens
from outlines_cont.random_stream import RandomStream
from outlines_cont.samplers import Sampler
from outlines_cont.state_row import StateRow
from outlines_cont.streams import StopMatch
from outlines_cont.streams.feed import CertainFeed
from tests.fakes import BOS, END_OF_TURN, EOS, FakeTokenizer, random_model, saying, scripted_model

TOKENIZER = FakeTokenizer()


def written(
    model: HuggingFaceModel,
    prompt: str,
    policies: Sequence[Policy[Any]],
    *,
    max_tokens: int = 40,
    sampler: Sampler | None = None,
    seed: int = 7,
) -> tuple[StateRow, str, Any, str]:
    """Run one row; return it, its new text, the last state of its last policy, and what a stream has shown."""
    ids = model.tokenizer.encode(prompt, add_special_tokens=True)
    counts = Meter()
    policies = [policy.for_model(model) for policy in policies]
    row = Row(StateRow.of_prompt(ids, RandomStream(seed)), policies, model, counts=counts, max_tokens=max_tokens)
    feed, shown = CertainFeed(row), ""
    job, engine = Job([row], sampler or samplers.greedy(), counts), Engine(model)
    engine.submit(job)
    while not job.is_over:
        engine.advance(job)
        shown += feed.pull(row).text
    done = job.done[0]
    assert tuple(ids) == done.token_ids[: len(ids)]
    text = model.tokenizer.text_bytes(done.token_ids[len(ids) :]).decode("utf-8", "replace")
    return done, text, row._tracks[-1].states[-1], shown


@pytest.mark.parametrize(
    ("prompt", "says", "stops", "keep", "wanted", "match"),
    [
        ("Hi\nUs>", "er: x", ["s>er:", "zz"], False, "", StopMatch(-2, 3, "s>er:")),
        ("Hi\nUs>", "er: x", ["s>er:"], True, "er:", StopMatch(-2, 3, "s>er:")),
        ("Hi\nUs>", "er: x", ["s>", "er"], False, "", StopMatch(0, 2, "er")),  # `s>` lies in the prompt
        ("a>", "a>b", [">", "a>b"], False, "a", StopMatch(1, 2, ">")),
        (">", "none of it", [">x"], False, "none of it", None),
    ],
)
def test_a_stop_text_may_begin_before_the_piece(
    prompt: str, says: str, stops: list[str], keep: bool, wanted: str, match: StopMatch | None
) -> None:
    model = scripted_model(saying(says))
    policies = [FreeText.of_model(model), StopAt(stops, TOKENIZER, keep=keep, stop_in_prompt=True)]
    done, text, state, shown = written(model, prompt, policies)
    assert (wanted, match, "stop") == (text, state.match, done.finish_reason)
    assert wanted == shown


def test_a_stop_text_that_begins_before_the_piece_does_not_count_without_being_asked_for() -> None:
    model = scripted_model(saying("er: x"))
    assert written(model, "Us>", [FreeText.of_model(model), StopAt(["s>er:"], TOKENIZER)])[1] == "er: x"


def test_a_long_token_that_completes_a_stop_text_of_the_prompt_is_taken_back_whole() -> None:
    (red,) = TOKENIZER.encode("red")
    model = scripted_model(lambda ids: {red: 20.0})
    for keep, wanted in ((False, ""), (True, "re")):
        stop = StopAt(">re", TOKENIZER, keep=keep, stop_in_prompt=True)
        done, text, _, shown = written(model, "a>", [FreeText.of_model(model), stop])
        assert (text, shown, done.finish_reason) == (wanted, wanted, "stop")


def test_a_prompt_of_many_short_tokens_is_looked_at_as_far_as_the_stop_text_reaches() -> None:
    model = scripted_model(saying("z!"))
    stop = StopAt(["x" * 30 + ">z"], TOKENIZER, stop_in_prompt=True)
    assert written(model, "x" * 40 + ">", [FreeText.of_model(model), stop])[1] == ""
    assert written(model, "x" * 29 + ">", [FreeText.of_model(model), stop])[1] == "z!"


def test_the_state_says_which_stop_text_was_found_after_the_cut_too() -> None:
    model = scripted_model(saying("one; two"))
    for keep in (False, True):
        _, text, state, _ = written(
            model, ">", [FreeText.of_model(model), StopAt(["; ", "!", "e; "], TOKENIZER, keep=keep)]
        )
        assert ("one; " if keep else "on", StopMatch(2, 5, "e; ")) == (text, state.match)


def test_one_stop_text_is_not_taken_for_its_letters() -> None:
    stop = StopAt("ab", TOKENIZER)
    assert (stop.stop_texts, stop.horizon) == (("ab",), 2)
    assert StopAt([], TOKENIZER).horizon == 0


@pytest.mark.parametrize("sampler", [samplers.greedy(), samplers.multinomial(temperature=3.0)])
def test_a_stop_token_ends_a_piece_and_is_taken_back(sampler: Sampler) -> None:
    model = random_model()
    for seed in range(4):
        uncut, _, _, _ = written(model, "the name", [FreeText.of_model(model)], sampler=sampler, seed=seed)
        start = len(model.tokenizer.encode("the name", add_special_tokens=True))
        ids = uncut.token_ids[start:]
        stops = {ids[4], ids[-1]}
        first = next(i for i, token_id in enumerate(ids) if token_id in stops)
        policies = [FreeText.of_model(model), StopTokens(stops)]
        done, text, state, shown = written(model, "the name", policies, sampler=sampler, seed=seed)
        assert ids[:first] == done.token_ids[start:]
        assert (ids[first], "stop") == (state.token_id, done.finish_reason)
        assert text == shown


def test_both_are_options_of_every_call() -> None:
    model = random_model()
    start = len(model.tokenizer.encode("the name", add_special_tokens=True))
    whole = continuous(generate.text(model))("the name", max_tokens=20).token_ids[0, 0].tolist()[start:]
    text = generate.text(model)("the name", max_tokens=20, policies=[StopTokens(whole[6:8])])
    assert text == model.tokenizer.text_bytes(whole[: min(map(whole.index, whole[6:8]))]).decode("utf-8", "replace")
    ending = scripted_model(lambda ids: {EOS: 30.0, TOKENIZER.encode("a")[0]: 1.0})
    assert [generate.text(ending)(">", policies=[MinTokens(least)]) for least in (0, 3)] == ["", "aaa"]


def test_a_special_token_ends_a_piece_where_free_text_may_draw_it() -> None:
    def script(ids: list[int]) -> dict[int, float]:
        return {END_OF_TURN: 30.0, EOS: 1.0} if TOKENIZER.text_bytes(ids).endswith(b"no") else saying("no")(ids)

    model = scripted_model(script)
    stop = StopTokens([END_OF_TURN])
    done, text, state, _ = written(model, ">", [FreeText.of_model(model, also=[END_OF_TURN]), stop])
    assert (text, done.finish_reason, state.token_id) == ("no", "stop", END_OF_TURN)
    done, text, state, _ = written(model, ">", [FreeText.of_model(model), stop])
    assert (text, done.finish_reason, state.token_id) == ("no", "stop", None)  # the model's own end


def test_a_stop_token_in_forced_text_ends_the_piece_too() -> None:
    import fsm

    model = random_model()
    (comma,) = (i for i, data in enumerate(TOKENIZER.token_bytes) if data == b"x")
    policies = [Constraint.of_model(model, fsm.regex("yesxno[ab]")), StopTokens([comma])]
    _, text, state, _ = written(model, ">", policies)
    assert ("yes", comma) == (text, state.token_id)


def test_no_end_comes_before_the_least_number_of_tokens() -> None:
    model = scripted_model(lambda ids: {EOS: 30.0, END_OF_TURN: 29.0, TOKENIZER.encode("a")[0]: 1.0})
    free = FreeText.of_model(model, also=[END_OF_TURN])
    for least in range(5):
        policies: list[Policy[Any]] = [free, StopTokens([END_OF_TURN]), MinTokens(least, [END_OF_TURN])]
        done, text, _, _ = written(model, ">", policies)
        assert ("a" * least, "stop") == (text, done.finish_reason)
    assert written(model, ">", [free, MinTokens(9, [END_OF_TURN])], max_tokens=3)[1] == "aaa"
    assert (
        written(model, ">", [free, StopAt("aaa", TOKENIZER, keep=False), MinTokens(9, [END_OF_TURN])])[1] + "aa" == "aa"
    )


def test_a_least_number_of_tokens_that_a_constraint_cannot_reach_is_a_dead_end() -> None:
    import fsm

    model = random_model()
    expression = fsm.regex("ab?")
    policies = [Constraint.of_model(model, expression, force=False), MinTokens(5)]
    done, text, _, _ = written(model, ">", policies)
    assert isinstance(done.error, DeadEnd)
    assert text == "ab"


@pytest.mark.parametrize("least", [-1, 1.5, True, None])
def test_a_least_number_that_is_none_is_refused(least: Any) -> None:
    with pytest.raises(OptionError, match="expected an int, 0 or more, as `min_tokens`"):
        MinTokens(least, [EOS])


@pytest.mark.parametrize("odd", [[-1], ["a"], 3, "ab", [2**24]])
def test_ends_that_are_no_ids_are_refused(odd: Any) -> None:
    for make in (lambda: StopTokens(odd), lambda: MinTokens(2, odd)):
        with pytest.raises((TypeError, ValueError), match="token id"):
            make()


def test_the_sets_of_free_text_are_as_they_were_where_nothing_is_added() -> None:
    model = random_model()
    plain, more = FreeText.of_model(model).token_ids, FreeText.of_model(model, also=[BOS]).token_ids
    assert BOS not in plain
    assert plain | TokenSet.of([BOS]) == more
