"""What lookup drafts learn of copies: how they end, and where the next one begins."""

from __future__ import annotations

import pytest

from outlines_cont import generate
from outlines_cont.drafts.lookup import _FORGET, _MOST_KEYS, CopyHabits, CopyTrail
from outlines_cont.engine.drafting.costs import StepCosts
from tests.fakes import saying, scripted_model

QUOTE, COMMA, A, B = 1, 2, 3, 4
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 9} for name in ("name", "city", "item")},
    "required": ["name", "city", "item"],
    "additionalProperties": False,
}


def test_what_comes_twice_instead_of_a_token_is_expected_and_no_longer_when_the_token_is_copied() -> None:
    habits = CopyHabits()
    habits.note(A, COMMA, QUOTE)
    assert habits.instead(A, COMMA) is None
    habits.note(A, COMMA, QUOTE)
    assert habits.instead(A, COMMA) == QUOTE
    assert habits.instead(B, COMMA) == QUOTE  # after any token
    assert habits.closing() == [QUOTE]
    for _ in range(2):
        habits.note(B, COMMA, COMMA)
    assert habits.instead(B, COMMA) is None  # after that token it is copied
    assert habits.instead(A, COMMA) == QUOTE
    assert habits.instead(COMMA, COMMA) is None  # one case in two is not enough where the token before is new


def test_what_came_long_ago_is_forgotten_and_memory_is_bounded() -> None:
    habits = CopyHabits()
    for _ in range(_FORGET):
        habits.note(A, COMMA, QUOTE)
    for _ in range(_FORGET):
        habits.note(A, COMMA, COMMA)
    assert habits.instead(A, COMMA) is None
    for token_id in range(_MOST_KEYS):
        habits.note(token_id, token_id + 1, 0)
    assert len(habits._ends) == _MOST_KEYS
    assert habits.instead(A, COMMA) is None


def test_a_trail_follows_a_copy_to_its_end() -> None:
    habits, trail = CopyHabits(), CopyTrail()
    prompt = [9, A, B, COMMA, A]
    for _ in range(2):
        trail.begin(5, 1)
        trail.follow([*prompt, A], habits)
        assert (trail.at, trail.source, trail.stopped) == (6, 2, trail.stopped)
        trail.follow([*prompt, A, B, QUOTE, 7, 8], habits)
        assert (trail.at, trail.stopped) == (None, 3)
    assert habits.instead(B, COMMA) == QUOTE
    assert habits.instead(9, A) is None


def test_a_trail_that_is_cut_is_left() -> None:
    trail = CopyTrail()
    trail.begin(5, 1)
    trail.cut(5)
    assert trail.at == 5
    trail.cut(4)
    assert trail.at is None


def test_records_after_the_first_take_fewer_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "length", lambda *_: 16)  # else it depends on what forwards take
    names = [("Ana", "Porto", "lamps"), ("Bea", "Lyon", "forks"), ("Cyd", "Oslo", "desks"), ("Dov", "Rome", "chairs")]
    texts = {n: f'{{"name":"{n}","city":"{c}","item":"{i}"}}' for n, c, i in names}

    def script(ids: list[int]) -> dict[int, float]:
        written = model.tokenizer.text_bytes(ids).decode(errors="replace")
        return saying(texts.get(written.partition(",")[0], ""))(ids)

    model = scripted_model(script)
    write = generate.json(model, SCHEMA, whitespace="none", draft="lookup")
    forwards = []
    for name, city, item in names * 2:
        with model.meter() as meter:
            assert write(f"{name}, {city}, {item}!>") == {"name": name, "city": city, "item": item}
        forwards.append(meter.forwards)
    assert max(forwards[4:]) < forwards[0]
    assert 3 * min(forwards[4:]) <= forwards[0]
