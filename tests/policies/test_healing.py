"""Healing, case by case: what is given back, what counts, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outlines_cont import Branch, Policy, RowView, SequenceState, TokenSet, continuous, generate, models, samplers
from outlines_cont.errors import StateFileError
from tests.fakes import (
    END_OF_TURN,
    EOS,
    FAMILIES,
    FakeTokenizer,
    Script,
    failing,
    random_model,
    random_network,
    recurrent_network,
    scripted_model,
)  # fmt: skip
from tests.healing import Spell, num_open
from tests.oracle import ends_of

IDS = FakeTokenizer()._ids


def liking(*texts: bytes, then: bytes = b"") -> Script:
    """A script that likes some tokens, the first most, after any text; behind a text that ends in `then` it likes the end."""
    tokenizer = FakeTokenizer()

    def script(ids: list[int]) -> dict[int, float]:
        if then and tokenizer.text_bytes(ids).endswith(then):
            return {EOS: 30.0}
        return {IDS[text]: 20.0 - 2 * at for at, text in enumerate(texts)}

    return script


def tokens(state: SequenceState, sample: int = 0) -> list[bytes]:
    row = state.rows[0][sample]
    return [state.tokenizer.text_bytes([i]) for i in row.token_ids]


# -- what is given back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["a", "t"])
@pytest.mark.parametrize("bos", [True, False])
def test_a_prompt_of_one_token(prompt: str, bos: bool) -> None:
    """The first token stays: without one before it, nothing is there to draw after."""
    model = models.from_transformers(random_network("llama"), FakeTokenizer(bos=bos))
    state = continuous(generate.text(model))(prompt, heal=True, max_tokens=3)
    assert str(state).startswith(prompt)
    piece = state.rows[0][0].piece
    assert piece is not None
    assert (1 if bos else 0) == piece.healed


def test_special_tokens_are_never_given_back() -> None:
    model = scripted_model(liking(b"n"))
    state = continuous(generate.text(model))("say th", max_tokens=1)
    row = state.tokens[..., :4].rows[0][0].append([END_OF_TURN], reset=True)
    ended = SequenceState(model, ((row,),), 0)
    after = continuous(generate.text(model))(ended, heal=True, max_tokens=1)
    assert row.token_ids == after.rows[0][0].token_ids[: len(row.token_ids)]
    assert [bool(span.num_healed) for span in after.spans[0][0] if span.is_piece] == [False]
    # What stands behind one is given back up to it.
    more = continuous(generate.text(model))(ended + "th", heal=True, max_tokens=1)
    assert more.rows[0][0].token_ids[4 + 0] == END_OF_TURN or END_OF_TURN in more.rows[0][0].token_ids
    assert more.rows[0][0].piece.healed == 2  # type: ignore[union-attr]


def test_half_a_character_is_completed() -> None:
    """The first two bytes of the four of an emoji are a token, of which no longer one begins; single bytes begin it."""
    emoji = "🙂".encode()
    model = scripted_model(liking(emoji[:2], emoji[2:3], emoji[3:]))
    whole = continuous(generate.text(model))("so >", max_tokens=1)
    (row,) = whole.tokens[..., :-1].rows[0]
    cut = SequenceState(model, ((row.append([IDS[emoji[:1]]], reset=True),),), 0)
    state = continuous(generate.text(model))(cut, heal=True, max_tokens=1)
    assert model.tokenizer.text_bytes(row.token_ids) + emoji[:2] == model.tokenizer.text_bytes(state.rows[0][0].token_ids)
    assert [b">", emoji[:2]] == tokens(state)[-2:]


# -- what counts -------------------------------------------------------------------------------------------------------


def test_max_tokens_counts_tokens_with_new_text() -> None:
    model = scripted_model(liking(b"h", b"t", b"o"))
    for limit in (1, 3):
        state = continuous(generate.text(model))("say th", heal=True, max_tokens=limit)
        assert [b" ", b"t", b"h", *[b"h"] * limit] == tokens(state)[3:]
    forced = continuous(generate.regex(model, "xyzxyz"))("say th", heal=True, max_tokens=2)
    assert (str(forced), forced.finish_reasons[0][0]) == ("say thxy", "length")
    resumed = continuous(generate.regex(model, "xyzxyz")).resume(forced, max_tokens=3)
    assert str(resumed) == "say thxyzxy"
    assert continuous(generate.regex(model, "xyzxyz")).resume(resumed).value == "xyzxyz"


def test_stop_texts_are_looked_for_behind_what_is_healed() -> None:
    model = scripted_model(liking(b" the", b" ", b"n"))
    write = continuous(generate.text(model))
    inside = write("say t", heal=True, stop_at="e", max_tokens=3)
    assert (inside.value, str(inside), inside.finish_reasons[0][0]) == ("h", "say th", "stop")
    at_once = write("say t", heal=True, stop_at="he", max_tokens=3)
    assert (at_once.value, str(at_once)) == ("", "say t")
    # `the` begins in the prompt, so it is none; the second one is.
    second = write("say t", heal=True, stop_at="the", max_tokens=3)
    assert (second.value, str(second)) == ("he ", "say the ")


def test_policies_of_the_user_apply_to_the_boundary() -> None:
    class Without(Policy[None]):
        def initial(self, row: RowView) -> None:
            assert row.healed == b" th"

        def branches(self, state: None, row: RowView) -> list[Branch]:
            return [Branch(sample_mask=~TokenSet.of([IDS[b" the"]]))]

        def advance(self, state: None, token_id: int) -> None:
            return None

    model = scripted_model(liking(b" the", b"n"))
    state = continuous(generate.text(model))("say th", heal=True, max_tokens=1, policies=[Without()])
    assert b" the" not in tokens(state)
    assert str(state).startswith("say th")


# -- batches, searches, chains -----------------------------------------------------------------------------------------


def test_of_a_state_that_was_fed_what_is_given_back_is_fed_again_once() -> None:
    model = scripted_model(liking(b"n", b"t", b"h"))
    write = continuous(generate.text(model))
    given = write("say", max_tokens=1) + " th"
    assert given.logits is not None
    with model.meter() as meter:
        state = write(given, heal=True, max_tokens=2)
    assert tokens(state)[-5:] == [b" ", b"t", b"h", b"n", b"n"]
    # Three tokens and the one before them, whose logits are not known any more.
    assert (meter.forwards, meter.recomputed_tokens, meter.fed_tokens, meter.reused_tokens) == (2, 4, 4 + 1, 7)


def test_ends_that_were_drawn_before_stay_in_the_weight() -> None:
    def script(ids: list[int]) -> dict[int, float]:
        return {EOS: 3.0} if ids[-1] == IDS[b"t"] else {IDS[b"t"]: 3.0}

    model = scripted_model(script)
    first = continuous(generate.text(model))("say ")
    assert (first.value, first.finish_reasons[0][0]) == ("t", "stop")
    state = continuous(generate.text(model))(first, heal=True)
    row = state.rows[0][0]
    assert (str(state), state.value) == ("say t", "")
    assert ends_of(first.rows[0][0]) < 0
    assert pytest.approx(2 * ends_of(first.rows[0][0])) == ends_of(row)
    assert pytest.approx(sum(row.logprobs) + ends_of(row)) == row.weight


# -- no forward more ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize(("liked", "wanted"), [((b"n", b" ", b"t", b"h"), [b" ", b"t", b"h", b"n"]), ((b" the", b"n"), [b" the"] * 4)])
def test_neither_what_comes_again_nor_a_longer_token_costs_a_forward(
    liked: tuple[bytes, ...], wanted: list[bytes], num_samples: int
) -> None:
    model = scripted_model(liking(*liked))
    write = continuous(generate.text(model, sampler=samplers.multinomial(num_samples, temperature=0.01)))
    with model.meter() as plain:
        write("say th", max_tokens=4, rng=1)
    with model.meter() as healed:
        state = write("say th", max_tokens=4, rng=1, heal=True)
    assert wanted == tokens(state)[3 : 3 + len(wanted)]
    assert plain.forwards == healed.forwards
    assert healed.recomputed_tokens == 0
    if len(liked) == 4:
        assert plain.fed_tokens == healed.fed_tokens


@pytest.mark.parametrize("family", [*FAMILIES, "mamba2"])
def test_every_kind_of_cache_gives_what_giving_back_by_hand_gives(family: str) -> None:
    model = models.from_transformers(recurrent_network() if family == "mamba2" else random_network(family), FakeTokenizer())
    draw = samplers.multinomial(2, temperature=2.0)
    write, token_bytes = continuous(generate.text(model, sampler=draw)), model.tokenizer.token_bytes
    for prompt in ("is it th", 'a "'):
        row = continuous(generate.text(model))(prompt, max_tokens=1).tokens[..., :-1].rows[0][0]
        count = num_open(token_bytes, row.token_ids)
        given = SequenceState(model, ((row,),), 0)
        removed = model.tokenizer.text_bytes(row.token_ids[len(row.token_ids) - count :])
        policies = [Spell(removed, token_bytes)]
        cut = given.tokens[..., : len(row.token_ids) - count].fork(2)
        by_hand = write(cut, policies=policies, max_tokens=12, rng=4)
        for start in (prompt, given.fork(2)):
            healed = write(start, heal=True, max_tokens=4, rng=4)
            for got, other in zip(healed.rows[0], by_hand.rows[0], strict=True):
                assert other.token_ids[: len(got.token_ids)] == got.token_ids
                assert pytest.approx(other.logprobs[: len(got.token_ids)], abs=1e-6) == got.logprobs


class BackOnce(Policy[tuple[int, bool]]):
    """Goes back by four tokens when there are six, and refuses the one that stood there."""

    def initial(self, row: RowView) -> tuple[int, bool]:
        return 0, False

    def branches(self, state: tuple[int, bool], row: RowView) -> list[Branch]:
        if state == (6, False):
            return [Branch(backtrack=4, exclude=TokenSet.of([row.token_ids[-4]]))]
        return [Branch(sample_mask=TokenSet.all)]

    def advance(self, state: tuple[int, bool], token_id: int) -> tuple[int, bool]:
        return state[0] + 1, state[1]

    def rewound(self, before: tuple[int, bool], after: tuple[int, bool]) -> tuple[int, bool]:
        return after[0], True


def test_a_resumed_piece_that_has_gone_back_behind_its_cut_reads_its_own_tokens_after_a_forward_that_fails() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    write = continuous(generate.text(model))
    cut = write(["is it so", "yes"], max_tokens=5)
    wanted = write.resume(cut, max_tokens=8, policies=[BackOnce()])
    for at in range(6):
        with failing(model, at):
            found = write.resume(cut, max_tokens=8, policies=[BackOnce()])
        assert wanted == found
        for row, other in zip(wanted.rows, found.rows, strict=True):
            assert pytest.approx(row[0].logprobs, abs=1e-9) == other[0].logprobs


# -- what is seen ------------------------------------------------------------------------------------------------------


def test_spans_show_what_is_healed() -> None:
    model = scripted_model(liking(b"h", b"t", b" "))
    state = continuous(generate.text(model))("say th", heal=True, max_tokens=2)
    spans = [(span.kind, span.text, span.num_healed, span.is_piece) for span in state.spans[0][0]]
    assert spans == [("prompt", "say", 0, False), ("healed", " th", 3, True), ("generated", "hh", 0, True)]
    joined = continuous(generate.text(scripted_model(liking(b" the"))))("say th", heal=True, max_tokens=2)
    spans = [(span.kind, span.text, span.num_healed, span.is_piece) for span in joined.spans[0][0]]
    assert spans == [("prompt", "say", 0, False), ("generated", " the", 3, True), ("generated", " the", 0, True)]
    later = (state + "!").spans[0][0]
    assert [span.kind for span in later] == ["prompt", "healed", "generated", "appended"]


def test_a_file_that_has_healed_more_than_it_has_is_refused(tmp_path: Path) -> None:
    model = random_model()
    state = continuous(generate.text(model))("say th", heal=True, max_tokens=2)
    row = state.rows[0][0]
    assert row.piece is not None
    broken = SequenceState(model, ((replace(row, piece=replace(row.piece, healed=1000)),),), 0)
    broken.save(tmp_path / "state")
    with pytest.raises(StateFileError, match="healed more text"):
        SequenceState.load(tmp_path / "state", model)


def test_a_state_that_is_taken_in_the_middle_begins_with_the_given_text() -> None:
    model = scripted_model(liking(b"n", b" ", b"t", b"h"))
    whole = continuous(generate.text(model))("say th", heal=True, max_tokens=3)
    stream = continuous(generate.text(model)).stream("say th", heal=True, max_tokens=3)
    seen = [str(stream.state)]
    for _ in stream:
        state = stream.state
        seen.append(str(state))
        resumed = continuous(generate.text(model)).resume(state, max_tokens=8)
        assert str(resumed).startswith("say thn")
    assert all(text.startswith("say th") for text in seen)
    assert str(whole) == seen[-1]


def test_a_check_may_refuse_the_token_at_the_boundary_while_a_stream_runs() -> None:
    """No new text of it was shown, so another may be drawn in its place."""
    model = scripted_model(liking(b"1", b"12", b"20", b"2", b",", b"]"))
    schema = {"type": "array", "prefixItems": [{"enum": [1, 2]}], "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2}
    generator = generate.json(model, schema, force=False)
    assert "".join(generator.stream("is: ", heal=True)) == str(continuous(generator)("is: ", heal=True)).removeprefix("is: ")


def test_min_tokens_and_stops_count_the_new_text() -> None:
    model = scripted_model(liking(b"n", b" ", b"t", b"h"))

    def script(ids: list[int]) -> dict[int, float]:
        return {EOS: 9.0, IDS[b"n"]: 3.0, IDS[b" "]: 2.0, IDS[b"t"]: 1.0}

    least = continuous(generate.text(scripted_model(script)))("say th", heal=True, min_tokens=2)
    assert (least.value, least.finish_reasons[0][0]) == ("nn", "stop")
    write = continuous(generate.text(model))
    # `hn` begins in the prompt: it is none but where that is asked for.
    assert write("say th", heal=True, stop_at="hn", max_tokens=3).value == "nnn"
    asked = write("say th", heal=True, stop_at="hn", max_tokens=3, stop_in_prompt=True)
    assert (asked.value, str(asked)) == ("", "say th")
    kept = write("say th", heal=True, stop_at="hn", max_tokens=3, stop_in_prompt=True, keep_stop=True)
    assert (kept.value, str(kept)) == ("n", "say thn")
    token = write("say th", heal=True, stop_token_ids=[IDS[b"n"]])
    assert (token.value, str(token)) == ("", "say th")
    assert [[IDS[b"n"]]] == token.stops


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_row_that_fails_before_the_text_is_spelled_is_as_it_came() -> None:
    class Failing(Policy[int]):
        def initial(self, row: RowView) -> int:
            return 0

        def branches(self, state: int, row: RowView) -> list[Branch]:
            if state == 1:
                raise ArithmeticError("on purpose")
            return [Branch(sample_mask=TokenSet.all)]

        def advance(self, state: int, token_id: int) -> int:
            return state + 1

    model = scripted_model(liking(b"n", b" ", b"t"))
    for is_fed in (False, True):
        given = continuous(generate.text(model))("say", max_tokens=1).tokens[..., :3] + " th"
        if is_fed:
            assert given.logits is not None
        state = continuous(generate.text(model))(given, heal=True, max_tokens=3, policies=[Failing()])
        assert isinstance(state.errors[0][0], ArithmeticError)
        assert given.rows[0][0].token_ids == state.rows[0][0].token_ids
        assert str(state) == "say th"
    prompt = continuous(generate.text(model))(["say th", "x th"], heal=True, max_tokens=3, policies=[Failing()])
    assert list(prompt) == ["say th", "x th"]


def test_a_context_without_room_to_spell_leaves_the_row_as_it_came() -> None:
    model = scripted_model(liking(b" ", b"r", b"e"))
    limit = model.context_length
    assert limit is not None
    prompt = "x" * (limit - 3) + " re"  # one token less than the context; spelled by single bytes it is one more
    assert limit - 1 == len(model.tokenizer.encode(prompt, add_special_tokens=True))
    state = continuous(generate.text(model))(prompt, heal=True)
    assert (prompt, "length", "") == (str(state), state.finish_reasons[0][0], state.value)
    longer = continuous(generate.text(scripted_model(liking(b" red"))))(prompt, heal=True)
    assert prompt + "d" == str(longer)[: limit + 1]


def test_another_policy_cannot_change_the_given_text() -> None:
    class Putting(Policy[int]):
        def initial(self, row: RowView) -> int:
            return 0

        def branches(self, state: int, row: RowView) -> list[Branch]:
            return [Branch(ff_tokens=[[IDS[b"x"]]])] if state == 0 else [Branch(sample_mask=TokenSet.all)]

        def advance(self, state: int, token_id: int) -> int:
            return 1

    model = scripted_model(liking(b"n"))
    state = continuous(generate.text(model))("say th", heal=True, max_tokens=2, policies=[Putting()])
    assert state.errors[0][0] is not None
    assert str(state) == "say th"
