"""What ends a piece: stop texts, also those that begin in the prompt, stop tokens, and a least number of tokens before that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import OptionError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import StopAt
from outlines_cont.samplers import Sampler
from tests.fakes import END_OF_TURN, EOS, FakeTokenizer, random_model, saying, scripted_model

TOKENIZER = FakeTokenizer()


def written(model: HuggingFaceModel, prompt: str, **options: Any) -> tuple[str, Any]:
    """The new text, which a stream shows, too, and what has stopped it."""
    state = continuous(generate.text(model))(prompt, max_tokens=40, **options)
    assert "".join(generate.text(model).stream(prompt, max_tokens=40, **options)) == state.value
    assert (state.stops[0][0] is not None) <= (state.finish_reasons == [["stop"]])
    return state.value, state.stops[0][0]


@pytest.mark.parametrize(
    ("prompt", "says", "stops", "options", "wanted", "stop"),
    [
        ("Hi\nUs>", "er: x", ["s>er:", "zz"], {"stop_in_prompt": True}, "", "s>er:"),
        ("Hi\nUs>", "er: x", ["s>er:"], {"stop_in_prompt": True, "keep_stop": True}, "er:", "s>er:"),
        ("Hi\nUs>", "er: x", ["s>", "er"], {"stop_in_prompt": True}, "", "er"),  # `s>` lies in the prompt
        ("a>", "a>b", [">", "a>b"], {"stop_in_prompt": True}, "a", ">"),
        (">", "none of it", [">x"], {"stop_in_prompt": True}, "none of it", None),
        ("Us>", "er: x", ["s>er:"], {}, "er: x", None),  # it is not asked for
        ("x" * 40 + ">", "z!", ["x" * 30 + ">z"], {"stop_in_prompt": True}, "", "x" * 30 + ">z"),
        ("x" * 29 + ">", "z!", ["x" * 30 + ">z"], {"stop_in_prompt": True}, "z!", None),
        (">", "one; two", ["; ", "!", "e; "], {}, "on", "e; "),
        (">", "one; two", ["; ", "!", "e; "], {"keep_stop": True}, "one; ", "e; "),
    ],
)
def test_a_stop_text_ends_the_text_and_may_begin_before_the_piece(
    prompt: str, says: str, stops: list[str], options: dict[str, bool], wanted: str, stop: str | None
) -> None:
    assert (wanted, stop) == written(scripted_model(saying(says)), prompt, stop_at=stops, **options)


def test_a_long_token_that_completes_a_stop_text_of_the_prompt_is_taken_back_whole() -> None:
    (red,) = TOKENIZER.encode("red")
    model = scripted_model(lambda ids: {red: 20.0})
    for keep, wanted in ((False, ""), (True, "re")):
        assert (wanted, ">re") == written(model, "a>", stop_at=">re", keep_stop=keep, stop_in_prompt=True)


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
