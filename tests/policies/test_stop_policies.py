"""What ends a piece: stop texts, also those that begin in the prompt, stop tokens, and a least number of tokens before that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.engine.engine import Engine
from outlines_cont.engine.job import Job
from outlines_cont.errors import OptionError
from outlines_cont.generation.stream import Detokenizer
from outlines_cont.meter import Meter
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import FreeText, StopAt
from outlines_cont.policies.policy import Policy
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from outlines_cont.streams import StopMatch
from tests.fakes import END_OF_TURN, EOS, FakeTokenizer, random_model, saying, scripted_model
from tests.rows import row_of

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
    source = StateRow.of_prompt(ids, RandomStream(seed))
    row = row_of(source, policies, model, counts=counts, max_tokens=max_tokens, sampler=sampler)
    feed, shown = Detokenizer(row), ""
    job, engine = Job([row], counts), Engine(model)
    engine.submit(job)
    while not job.is_over:
        engine.advance(job)
        shown += feed.changes(row).text
    done = job.done[0]
    assert tuple(ids) == done.token_ids[: len(ids)]
    text = model.tokenizer.text_bytes(done.token_ids[len(ids) :]).decode("utf-8", "replace")
    return done, text, row.piece.policies.states[-1].stack[-1], shown


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
def test_a_stop_token_ends_a_piece_and_is_no_part_of_it(sampler: Sampler) -> None:
    model = random_model()
    generator = continuous(generate.text(model, sampler=sampler))
    for seed in range(4):
        ids = _new_ids(generator("the name", max_tokens=20, rng=seed))
        stops = [ids[4], ids[-1]]
        first = next(i for i, token_id in enumerate(ids) if token_id in stops)
        state = generator("the name", max_tokens=20, rng=seed, stop_token_ids=stops)
        assert ids[:first] == _new_ids(state)
        assert ([["stop"]], [[ids[first]]]) == (state.finish_reasons, state.stops)


def _new_ids(state: SequenceState) -> list[int]:
    row = state.rows[0][0]
    assert row.piece is not None
    return list(row.token_ids[row.piece.start :])


def test_a_special_token_ends_a_piece_where_the_text_may_end() -> None:
    def script(ids: list[int]) -> dict[int, float]:
        return {END_OF_TURN: 30.0, EOS: 1.0} if TOKENIZER.text_bytes(ids).endswith(b"no") else saying("no")(ids)

    model = scripted_model(script)
    for generator in (generate.text(model), generate.regex(model, "no[ab]?", force=False)):
        state = continuous(generator)(">", stop_token_ids=[END_OF_TURN])
        assert (state.values[0], state.stops) == (["no"], [[END_OF_TURN]])
        state = continuous(generator)(">")
        assert (state.values[0], state.stops) == (["no"], [[None]])  # the model's own end
    assert generate.text(model, sampler=samplers.beam_search(2))(">", stop_token_ids=[END_OF_TURN])[0] == "no"


@pytest.mark.parametrize("keep", [False, True])
def test_a_state_says_which_stop_has_ended_it_also_when_it_was_saved(tmp_path: Path, keep: bool) -> None:
    model = scripted_model(saying("one two three"))
    generator = continuous(generate.text(model))
    state = generator([">", "x>"], max_tokens=40, stop_at=["thr", "wo", "o t"], keep_stop=keep)
    assert state.stops == [["wo"], ["wo"]]
    assert not state.retries.any()  # a cut is none
    assert [">one t" + "wo" * keep, "x>one t" + "wo" * keep] == list(state)
    state.save(tmp_path / "state")
    assert SequenceState.load(tmp_path / "state", model).stops == state.stops
    assert (state + "x").stops == [[None], [None]]


def test_no_end_comes_before_the_least_number_of_tokens() -> None:
    model = scripted_model(lambda ids: {EOS: 30.0, END_OF_TURN: 29.0, TOKENIZER.encode("a")[0]: 1.0})
    generator = generate.text(model)
    for least in range(5):
        assert generator(">", min_tokens=least, stop_token_ids=[END_OF_TURN]) == "a" * least
    assert generator(">", min_tokens=3, max_tokens=3) == "aaa"
    assert generator(">", min_tokens=9, stop_at="aaa") == ""  # stop texts are not held off
    cut = continuous(generator)(">", min_tokens=4, max_tokens=4)
    assert continuous(generator).resume(cut, min_tokens=6, max_tokens=9).values == [["a" * 6]]


def test_a_least_number_of_tokens_that_a_constraint_cannot_reach_ends_where_nothing_may_follow() -> None:
    assert generate.regex(random_model(), "ab?", force=False)(">", min_tokens=5) == "ab"


@pytest.mark.parametrize(
    "options",
    [{"min_tokens": least} for least in (-1, 1.5, True, None)]
    + [{"min_tokens": 4, "max_tokens": 3}, {"keep_stop": True}, {"stop_in_prompt": True}]
    + [{"stop_token_ids": odd} for odd in ([-1], ["a"], 3, "ab", [2**24], [True])],
    ids=str,
)
def test_what_is_out_of_its_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        generate.text(random_model())(">", **options)
    assert caught.value.option in options


def test_a_stop_text_of_the_prompt_counts_where_that_is_asked_for() -> None:
    model = scripted_model(saying(": yes"))
    generator = generate.text(model)
    assert generator("User", stop_at="User:", max_tokens=9) != ""
    assert generator("User", stop_at="User:", max_tokens=9, stop_in_prompt=True) == ""
    assert generator("User", stop_at="User:", max_tokens=9, stop_in_prompt=True, keep_stop=True) == ":"
