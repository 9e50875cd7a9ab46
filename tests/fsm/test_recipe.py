"""Expressions are pickled as the calls that made them: made again they are the same terms."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pydantic import BaseModel

import fsm
from fsm import Expression
from fsm.terms import node as nodes


class Person(BaseModel):
    """A type that another process can import."""

    name: str


def _again(expression: Expression) -> Expression:
    return pickle.loads(pickle.dumps(expression))  # type: ignore[no-any-return]  # noqa: S301  # our own


_MADE = {
    "regex": lambda: fsm.regex("a+b", ascii=True),
    "choice": lambda: fsm.choice(["yes", "no"]),
    "schema": lambda: fsm.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}, whitespace="none"),
    "type": lambda: fsm.json_schema(Person),
    "checks": lambda: fsm.json_schema({"type": "array", "uniqueItems": True}),
    "until": lambda: fsm.until("\n\n"),
    "substring": lambda: fsm.substring("the name", end="."),
    "operators": lambda: ("(" + (fsm.regex("[ab]") | "c").repeat(1, 3) + ")") & ~fsm.regex(".*cc.*"),
    "names": lambda: fsm.regex("[0-9]+").named("count") + " " + fsm.choice(["lamps", "desks"]).named("what"),
    "types": lambda: fsm.types.email | fsm.types.date | fsm.types.markdown_list,
}


@pytest.mark.parametrize("name", _MADE)
def test_an_expression_made_again_is_the_same(name: str) -> None:
    expression = _MADE[name]()
    again = _again(expression)
    assert again == expression
    assert hash(again) == hash(expression)
    assert (repr(again), again.report, again.names) == (repr(expression), expression.report, expression.names)
    assert _again(again) == expression


@pytest.mark.parametrize("text", ['start: "a" start | "b"', 'start: ["a"] "b"'])
def test_a_grammar_made_again_accepts_the_same(text: str) -> None:
    expression = fsm.grammar(text)
    again = _again(expression)
    for word in ("a", "b", "ab", "aab", "ba", ""):
        assert again.accepts(word) == expression.accepts(word)


def test_long_chains_and_shared_parts_cost_no_more_than_their_calls() -> None:
    chain = fsm.regex("a")
    for _ in range(300):
        chain = chain + "b"
    assert _again(chain) == chain
    shared = fsm.regex("[ab]")
    for _ in range(10):
        shared = shared | shared
    assert len(pickle.dumps(shared)) < 1500
    assert _again(shared) == shared


def test_another_process_makes_the_same_language() -> None:
    expression = _MADE["operators"]()
    code = "import pickle, sys; e = pickle.loads(sys.stdin.buffer.read()); print(e.accepts('(abc)'), e.accepts('(cc)'))"
    run = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(expression), capture_output=True, check=True)
    assert run.stdout.split() == [b"True", b"False"]


def test_a_part_of_which_nothing_is_known_is_refused() -> None:
    unknown = Expression(nodes.literal(b"x"))
    with pytest.raises(TypeError, match="made in another way"):
        pickle.dumps("a" + unknown)
