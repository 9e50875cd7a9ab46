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
from outlines_cont.errors import OptionError, UnsupportedBranch
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
    with model.meter() as meter:
        state = continuous(free(model, "ab"))("x>")
    assert (state.finish_reasons, meter.sampled_tokens) == ([["constraint"]], 1)
    assert state.weights.item() == pytest.approx(0, abs=1e-3)  # that of the token; the end was certain


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
    with pytest.raises(UnsupportedBranch, match="leaves their languages"):
        free(model, "[a-c]+")("x>", policies=other, max_tokens=3)
    assert free(model, "[a-c]+", end="eos")("x>", policies=other, max_tokens=3) == "a"


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


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("scale", [1.0, 2.5])
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


LETTERS = {token_id: 4.0 for data, token_id in IDS.items() if (data.isalpha() and data.islower()) or data == b" "}
"""So that the random model stays in these languages for some tokens."""
PATTERNS = ["[a-z ]+", "[a-z]+(, [a-z]+)*", r"\w{2,}( \w+)*", r'"[^"]*"', "(the|name|age| )*"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "sampler", [samplers.greedy(logit_bias=LETTERS), samplers.multinomial(4, logit_bias=LETTERS)], ids=["greedy", "drawn"]
)
def test_drafts_change_nothing(pattern: str, sampler: Any) -> None:
    write = continuous(free(random_model(), pattern, sampler=sampler))
    plain, drafted = (write("the name the name is ", max_tokens=12, rng=3, draft=draft) for draft in (None, "lookup"))
    assert plain.token_ids.tolist() == drafted.token_ids.tolist()
    assert plain.weights.flatten().tolist() == pytest.approx(drafted.weights.flatten().tolist(), abs=1e-6)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_streams_show_the_text(pattern: str) -> None:
    write = free(random_model(), pattern, sampler=samplers.multinomial(6, logit_bias=LETTERS))
    state = continuous(write)("the name is ", max_tokens=12, rng=4)
    stream = continuous(write).stream("the name is ", max_tokens=12, rng=4)
    texts = [""] * 6
    for event in stream:
        assert not event.retract
        texts[event.sample] += event.text
    assert [texts] == state.generated
    assert stream.state == state


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_piece_in_parts_is_the_piece(pattern: str) -> None:
    write = continuous(free(random_model(), pattern, sampler=samplers.multinomial(6, logit_bias=LETTERS)))
    whole = write("the name is ", max_tokens=12, rng=4)
    parts = write("the name is ", max_tokens=1, rng=4)
    for _ in range(11):
        parts = write.resume(parts, max_tokens=1)
    rows = zip(whole.rows[0], parts.rows[0], strict=True)
    for one, other in rows:
        if one.finish_reason != "length":
            assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
            assert one.weight == pytest.approx(other.weight, abs=1e-6)


def test_healing_comes_first() -> None:
    write = continuous(free(random_model(), "[a-z]*( [a-z]+)*", sampler=samplers.multinomial(40, logit_bias=LETTERS)))
    state = write("the na", max_tokens=8, rng=4, heal=True)
    for row in state.rows[0]:
        text = row.text(random_model().tokenizer)
        assert text.startswith("the na")
        if row.finish_reason == "stop":
            assert row.value == text[6:]
    assert any(row.finish_reason == "stop" for row in state.rows[0])


# -- chains, and the other ways to make a piece --------------------------------------------------------------------------


def test_what_follows_continues_the_state() -> None:
    model = random_model()
    number, words = free(model, "[a-z]+"), generate.text(model)
    with model.meter() as meter:
        state = continuous(number)("the name is ", max_tokens=5)
        longer = continuous(words)(state + " and", max_tokens=3)
    assert meter.recomputed_tokens == 0
    fresh = continuous(words)(list(longer.rows[0][0].token_ids[:-3]), max_tokens=3)
    assert longer.rows[0][0].token_ids == fresh.rows[0][0].token_ids


def test_rows_of_a_batch_end_alone() -> None:
    write = free(random_model(), r"[a-z ]+\.?", sampler=samplers.multinomial())
    prompts = ["the name", "age: ", "12 red", "no"]
    together = write(prompts, rng=[1, 2, 3, 4], max_tokens=200, stop_at="q")
    assert together == [write(prompt, rng=seed, max_tokens=200, stop_at="q") for seed, prompt in enumerate(prompts, 1)]


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
