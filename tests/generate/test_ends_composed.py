"""`end="free"` together with everything else: forced text, limits, stops, bans, checks, drafts, guidance, streams, healing, chains."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Annotated, Any

import pytest
import torch
from pydantic import AfterValidator

import fsm
from outlines_cont import Guidance, Template, continuous, control, generate, policies, samplers
from outlines_cont.errors import IncompleteOutput, OptionError, UnsupportedBranch
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import Branch, Policy, RowView, TokenSet
from tests.fakes import EOS, FakeTokenizer, random_model, scripted_model
from tests.oracle import next_logits

TOKENS = FakeTokenizer().token_bytes
IDS = {data: token_id for token_id, data in enumerate(TOKENS) if data}


def writing(*pieces: str, second: str = "") -> HuggingFaceModel:
    """A model that writes some tokens after the prompt `x>`, one after the other; `second` is the next most probable everywhere."""
    tokenizer = FakeTokenizer()

    def script(ids: list[int]) -> dict[int, float]:
        written, done = tokenizer.text_bytes(ids).split(b">")[-1], b""
        rest = [piece.encode() for piece in pieces]
        while rest and written.startswith(done + rest[0]) and len(done) < len(written):
            done += rest.pop(0)
        wanted = {IDS[second.encode()]: 40.0} if second else {}
        return {**wanted, IDS[rest[0]] if rest else EOS: 60.0}

    return scripted_model(script)


def free(model: HuggingFaceModel, pattern: str, **options: Any) -> generate.Generator:
    return generate.regex(model, pattern, **{"end": "free", **options})


def ends(state: Any) -> tuple[str, list[list[str]]]:
    return state.generated, state.finish_reasons


# -- forced text, limits ---------------------------------------------------------------------------------------------------


def test_where_the_text_may_end_nothing_is_forced() -> None:
    for pieces, text in ((("1", "."), "1"), (("1", " ", "c"), "1 cat"), (("12", "."), "12")):
        model = writing(*pieces)
        assert ends(continuous(free(model, "[0-9]+( cat)?"))("x>", max_tokens=20))[0] == text


def test_a_forced_text_that_a_leaving_token_may_spell_is_drawn() -> None:
    """`an` leaves `a( 1)?` after `a`; with an end of text alone `a` is forced."""
    model = writing("an", "!")
    for end, is_forced in (("free", False), ("eos", True)):
        with model.meter() as meter:
            state = continuous(free(model, "a( 1)?", end=end))("x>", max_tokens=5)
        assert bool(meter.forced_tokens) is is_forced
        assert state.generated == "a"
    sampled = continuous(free(model, "a( 1)?", force=False))("x>", max_tokens=5)
    assert ends(sampled) == ends(continuous(free(model, "a( 1)?"))("x>", max_tokens=5)) == ("a", [["stop"]])


def test_a_text_after_which_nothing_may_follow_needs_no_draw() -> None:
    model = writing("ab", ".")
    for force, sampled in ((True, 0), (False, 1)):  # a token may spell `ab` and more, but only one text is left
        with model.meter() as meter:
            state = continuous(free(model, "ab", force=force))("x>")
        assert (state.generated, state.finish_reasons, meter.sampled_tokens) == ("ab", [["constraint"]], sampled)
        assert state.weights.item() == pytest.approx(0, abs=1e-3)  # that of the token; the end was certain


def test_a_fixed_end_is_forced_in_one_piece() -> None:
    model = writing("ab", ", ", "c")
    for pattern, forced in (("a?b, c", True), ("a?b, (c|cat)", False)):
        with model.meter() as meter:
            state = continuous(free(model, pattern))("x>", max_tokens=9)
        assert state.generated == "ab, c"
        assert (meter.sampled_tokens == 1) is forced


def test_the_shortest_length_comes_first() -> None:
    model = writing(".", second="a")
    for least in (0, 1, 3):
        state = continuous(free(model, "a*", force=False))("x>", min_tokens=least, max_tokens=6)
        assert ends(state) == ("a" * least, [["stop"]])
    assert continuous(free(model, "a*"))("x>", min_tokens=3, max_tokens=3).finish_reasons == [["length"]]


def test_stop_tokens_end_it_as_well() -> None:
    model = writing("a", ".", second="b")
    write = continuous(free(model, "[ab]+"))
    assert write("x>", stop_token_ids=[IDS[b"."]]).stops == [[IDS[b"."]]]
    assert ends(write("x>", stop_token_ids=[IDS[b"a"]], min_tokens=1)) == ("b", [["stop"]])
    assert write("x>", stop_token_ids=[IDS[b"!"]]).stops == [[None]]


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("draft", [None, "lookup"])
def test_an_end_that_has_no_room_is_cut_and_resumed(drawn: bool, draft: Any) -> None:
    assert b"th" not in IDS  # `the` leaves `[th]+` after two tokens
    model = scripted_model(lambda ids: {IDS[b"the"]: 60.0, IDS[b"h"]: 59.0})
    write = continuous(free(model, "[th]+", force=False, sampler=samplers.multinomial(40) if drawn else samplers.greedy()))
    whole = write("x>", max_tokens=9, rng=2, draft=draft)
    assert {row.finish_reason for row in whole.rows[0]} == {"stop"}
    for limit in (1, 2, 3):
        state = write("x>", max_tokens=limit, rng=2, draft=draft)
        cut = [row.finish_reason for row in state.rows[0]]
        assert ("length" in cut) is (limit < 2 or drawn)
        assert all(len(row.token_ids) - row.piece.start <= limit for row in state.rows[0] if row.piece is not None)
        resumed = write.resume(state, max_tokens=9, draft=draft)
        assert [row.token_ids for row in resumed.rows[0]] == [row.token_ids for row in whole.rows[0]]
        assert resumed.weights.flatten().tolist() == pytest.approx(whole.weights.flatten().tolist(), abs=1e-6)


def test_a_draw_for_which_there_is_no_room_takes_no_random_number() -> None:
    model = scripted_model(lambda ids: {IDS[b"the"]: 60.0})

    async def script() -> None:
        with pytest.raises(IncompleteOutput):
            await control.gen(regex="[th]+", end="free", max_tokens=1, force=False)
        await control.gen(max_tokens=1, temperature=0)
        await control.gen(max_tokens=2)

    ((row,),) = control.run(model, script, "x>", sampler=samplers.multinomial(), rng=1).state.rows
    assert model.tokenizer.decode(row.token_ids) == "x>thethethe"
    assert row.stream.drawn == 2


def test_beams_do_not_end_where_there_is_no_room() -> None:
    model = scripted_model(lambda ids: {IDS[b"the"]: 60.0, IDS[b"h"]: 59.0})
    search = continuous(free(model, "[th]+", force=False, sampler=samplers.beam_search(4)))
    for limit in (1, 2, 3):
        rows = search("x>", max_tokens=limit).rows[0]
        assert all(len(row.token_ids) - row.piece.start <= limit for row in rows if row.piece is not None)
    assert search("x>", max_tokens=3).rows[0][0].value == "th"


# -- other policies ------------------------------------------------------------------------------------------------------


def test_a_stop_text_that_only_the_end_completes_is_found_in_the_text_alone() -> None:
    model = writing("a", ", ")
    write = continuous(free(model, "[a,]+"))
    assert write("x>", stop_at=", ").generated == "a,"
    stopped = write("x>", stop_at=",")
    assert (stopped.generated, stopped.stops) == ("a", [[","]])
    assert write("x>", stop_at=",", keep_stop=True).generated == "a,"


def test_bans_see_the_text_and_not_what_leaves_it() -> None:
    model = writing("a", ", ", second="b")
    write = continuous(free(model, "[ab,]{1,4}", force=False))
    passes = write("x>", policies=[policies.ban([", "])])
    assert (passes.generated, passes.retries.item()) == ("a,", 0)
    banned = write("x>", policies=[policies.ban([","])])
    assert "," not in banned.generated
    assert banned.generated.startswith("ab")
    earlier = write("x>", policies=[policies.ban(["a,"])])
    assert (earlier.generated[0], earlier.errors) == ("b", [[None]])


def test_bans_see_every_token_of_what_is_spelled_anew() -> None:
    assert b"th" not in IDS  # so that `the` leaves `[th]+` after two tokens
    for banned, text in ((["x"], "th"), (["t"], "h"), (["h"], "t"), (["th"], "h")):
        model = scripted_model(lambda ids: {IDS[b"the"]: 80.0, IDS[b"h"]: 60.0, IDS[b"t"]: 40.0})
        state = continuous(free(model, "[th]+", force=False))("x>", policies=[policies.ban(banned)], max_tokens=3)
        assert state.errors == [[None]]
        assert banned[0] not in state.generated
        assert state.generated.startswith(text)


class NoEnd(Policy[int]):
    """Lets no text end before it has some bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def initial(self, row: RowView) -> int:
        return 0

    def advance(self, state: int, token_id: int) -> int:
        return state + len(TOKENS[token_id] or b"")

    def branches(self, state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.all if state >= self.size else ~TokenSet.of([EOS]))]


def test_a_policy_that_allows_no_end_allows_no_token_that_leaves() -> None:
    for size, text in ((0, "1,"), (2, "1,"), (3, "1b,"), (4, "1bb,")):
        model = writing("1", ", ", second="b")
        write = continuous(free(model, "[1b,]+", force=False))
        assert ends(write("x>", policies=[NoEnd(size)], max_tokens=12)) == (text, [["stop"]])


def _is_even(value: int) -> int:
    assert value % 2 == 0
    return value


def test_checks_are_done_at_the_end() -> None:
    for pieces, value in ((("1", "}"), 18), (("20", "}"), 20), (("12", ".", "5"), 12), (("3", '"}'), 38)):
        model = writing(*pieces, second="8")
        number = generate.json(model, Annotated[int, AfterValidator(_is_even)], end="free", force=False)
        assert number("x>", max_tokens=8) == value


def test_two_languages_that_both_end_so_are_refused() -> None:
    model = writing("a")
    other = policies_of(free(model, "[ab]+"))
    with pytest.raises(UnsupportedBranch, match="first & second"):
        free(model, "[a-c]+")("x>", policies=other, max_tokens=3)
    assert free(model, "[a-c]+", end="eos")("x>", policies=other, max_tokens=3) == "a"
    both = fsm.regex("[a-c]+") & fsm.regex("[ab]+")
    assert generate.fsm(model, both)("x>", max_tokens=3) == "a"


def policies_of(generator: generate.Generator) -> list[Policy[Any]]:
    assert generator.constraint is not None
    return [generator.constraint]  # type: ignore[list-item]


# -- how tokens are drawn ------------------------------------------------------------------------------------------------


@cache
def _leaving(pattern: str, text: bytes) -> list[int]:
    """The tokens before which a text may end and is left, those that end a text included."""
    language = generate.regex(random_model(), pattern).constraint.token_fsm  # type: ignore[union-attr]
    state = language.automaton.next_state(language.initial_state, text)
    inside = {*language.allowed_token_ids(state).tolist()} - {EOS}
    return [i for i, data in enumerate(TOKENS) if (data or i == EOS) and i not in inside]


def _share_of_empty_texts(count: int, **options: Any) -> float:
    sampler = samplers.multinomial(count, **options.pop("sampler", {}))
    drawn = free(random_model(), "[a-z]*", sampler=sampler)("the name", max_tokens=1000, rng=2, stop_at="\n", **options)
    return Counter(drawn)[""] / count


@pytest.mark.parametrize(("temperature", "scale"), [(0.7, 2.5), (1.0, 1.0), (3.0, 2.5)])
def test_the_share_is_that_after_warpers_and_guidance(temperature: float, scale: float) -> None:
    model = random_model()
    logits, negative = (next_logits(model, model.tokenizer.encode(text, add_special_tokens=True))[-1] for text in ("the name", "12"))
    drawn_from = scale * logits.log_softmax(0) + (1 - scale) * negative.log_softmax(0)
    spelled = [i for i, data in enumerate(TOKENS) if data or i == EOS]
    probs = torch.full_like(logits, -torch.inf)
    probs[spelled] = drawn_from[spelled]
    expected = float((probs / temperature).softmax(0)[_leaving("[a-z]*", b"")].sum())
    found = _share_of_empty_texts(800, sampler={"temperature": temperature}, guidance=Guidance("12", scale))
    assert expected == pytest.approx(found, abs=4.5 * (expected * (1 - expected) / 800) ** 0.5 + 1e-3)


# -- chains, and the other ways to make a piece --------------------------------------------------------------------------


def test_templates_scripts_and_chats_take_it() -> None:
    model = writing("1", ".")
    for source in ('x>{{ gen("n", regex="[0-9]+", end="free") }}', 'x>{{ grammar("n", "start: /[0-9]+/", end="free") }}'):
        assert Template(source).run(model).captures == {"n": "1"}

    async def script() -> None:
        await control.gen(regex="[0-9]+", name="n", end="free")

    assert control.run(model, script, "x>").captures == {"n": "1"}


@pytest.mark.parametrize(
    "make",
    [
        lambda model, end: generate.regex(model, "[0-9]+", end=end),
        lambda model, end: generate.cfg(model, "start: /[0-9]+/", end=end),
        lambda model, end: generate.fsm(model, fsm.regex("[0-9]+"), end=end),
        lambda model, end: generate.choice(model, ["4", "45"], end=end),
        lambda model, end: generate.json(model, {"type": "integer"}, end=end),
        lambda model, end: generate.format(model, int, end=end),
    ],
)
def test_every_generator_takes_it(make: Any) -> None:
    model = writing("4", ".", second="5")
    assert str(make(model, "free")("x>", max_tokens=3)) == "4"
    with pytest.raises(OptionError, match="'eos' or 'free'"):
        make(model, "now")
