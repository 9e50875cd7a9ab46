"""References that double: level n of a schema or a grammar names level n + 1 twice. They cost what their text is long, not what they
stand for, or are refused; and what they mean is what they mean written out.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from fsm import BudgetExceeded, Expression, FSMError, Limits, TokenFSM, gbnf, grammar, json_schema, regex
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import GrammarError
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.node import Kind
from tests.examples import examples
from tests.fuzz import doubling, languages

DEPTH = 64


def definitions(level: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    levels = {f"d{n}": level({"$ref": f"#/$defs/d{n + 1}"}) for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": levels | {f"d{depth}": {"type": "integer"}}}


def lines(level: str, depth: int = DEPTH, letter: str = "r", first: str = "start: {}", sign: str = ":") -> str:
    rows = [level.replace("{}", f"{letter}{n + 1}") for n in range(depth)]
    return "\n".join(
        [first.replace("{}", f"{letter}0"), *(f"{letter}{n} {sign} {row}" for n, row in enumerate(rows)), f'{letter}{depth} {sign} "a"']
    )


def added(expression: Expression, times: int = DEPTH) -> Expression:
    for _ in range(times):
        expression = expression + expression
    return expression


def array(**keywords: Any) -> Any:
    return {"type": "array", **keywords}


COMPILED: dict[str, Callable[[], Expression]] = {
    "arrays of two": lambda: json_schema(definitions(lambda ref: array(prefixItems=[ref, ref], minItems=2, maxItems=2))),
    "two items": lambda: json_schema(definitions(lambda ref: array(items=ref, minItems=2, maxItems=2))),
    "two properties": lambda: json_schema(
        definitions(lambda ref: {"type": "object", "properties": {"a": ref, "b": ref}, "required": ["a", "b"]})
    ),
    "three items": lambda: json_schema(definitions(lambda ref: array(prefixItems=[ref] * 3, items=False, minItems=1))),
    "either of two": lambda: json_schema(
        definitions(lambda ref: {"anyOf": [{"type": "null"}, array(prefixItems=[ref, ref], minItems=2)]}, 32)
    ),
    "rules": lambda: grammar(lines("{} {}")),
    "optional rules": lambda: grammar(lines("{}? {}")),
    "optional items": lambda: grammar("start: " + " ".join(f'["a{n}"]' for n in range(DEPTH))),
    "groups": lambda: grammar("start: " + " ".join(f'("a{n}" | "b{n}")' for n in range(DEPTH))),
    "loops": lambda: grammar("start: " + " ".join(f'"a{n}"*' for n in range(DEPTH))),
    "counts": lambda: grammar("start: " + " ".join(f'"a{n}"~0..9' for n in range(DEPTH))),
    "terminals of the dialect": lambda: grammar(lines("{} {}", 16, "T", 'start: {} "q"{2}')),
    "gbnf": lambda: gbnf(lines("{} {}", first="root ::= {}", sign="::=")),
    "sums": lambda: added(regex("a|b")),
    "sums of named parts": lambda: added(regex("a|b").named("one"), 24),
    "counts of counts": lambda: regex("(a{1000}){1000}"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_what_doubles_is_as_large_as_its_text(name: str) -> None:
    before = work.done()
    expression = COMPILED[name]()
    assert work.done() - before < 40_000
    assert sum(1 for _ in nodes.all_parts(expression.node)) < 30_000
    with suppress(BudgetExceeded):  # optional rules are as ambiguous as can be
        doubling.walk(TokenFSM(expression, doubling.vocabulary()), Random(0))


@pytest.mark.parametrize("level", ["{} {}", '{} "x" | {} "y"', "{}? {}", "{}+ {}*"])
def test_terminals_that_double_are_refused_before_they_are_written_out(level: str) -> None:
    assert grammar(lines(level, 2, "T")).accepts("aaaa") == (level in ("{} {}", "{}? {}", "{}+ {}*"))
    with pytest.raises(BudgetExceeded, match="symbols of terminals, .* `max_expansion`"):
        grammar(lines(level, letter="T"))


def test_templates_that_multiply_are_refused() -> None:
    with pytest.raises(BudgetExceeded, match="symbols of rules, .* `max_expansion`"):
        grammar('start: t{"a"}\nt{x}: ' + " ".join(['[x "b"]'] * 30))


def test_terms_that_take_too_much_work_are_refused() -> None:
    with pytest.raises(BudgetExceeded, match="compiling the grammar takes more than 5,000 steps of work"):
        grammar(lines("({} {}) & ({} /[a-z]+/)", 24, "T", 'start: {} "q"{2}'), limits=Limits(max_work=5_000))


def test_random_languages_that_double_compile_or_are_refused_in_bounds() -> None:
    """In a process of its own, whose memory and time are bounded by the system as well."""
    code = (
        "from tests.fuzz import doubling, masks; counts = masks.Counts()\n"
        "found = [*doubling.run(1000, 1e9, counts, count=5, num_steps=4)]\n"
        "print(*found, counts, sep=chr(10)); assert not found"
    )

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=bounded, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


def test_schemas_that_double_mean_what_they_say() -> None:
    """Against jsonschema-rs: texts of the language, and values that are nearly such."""
    checked = 0
    for seed in range(examples(60)):
        random = Random(seed)
        source = doubling.schema(random, random.randint(1, 4))
        try:
            expression = doubling.build("schema", source)
        except FSMError:
            continue
        validator = jsonschema_rs.Draft202012Validator(source)
        for _ in range(6):
            text = written(expression, random)
            if text is None:
                continue
            for value in (json.loads(text), changed(json.loads(text), random)):
                spelled = json.dumps(value, separators=(",", ":"))
                assert expression.accepts(spelled) == validator.is_valid(value), (seed, spelled)
                checked += 1
    assert checked > examples(300)


def written(expression: Expression, random: Random, most: int = 300) -> str | None:
    """A random text of a language without spaces; None where it becomes too long."""
    automaton = Automaton(expression.node)
    state, text = automaton.initial_state, bytearray()
    while len(text) < most:
        moves = {byte: target for byte, target in automaton.moves(state).items() if 32 < byte < 127 and byte != 92}
        if automaton.is_accepting(state) and (not moves or random.random() < 0.5):
            return text.decode() if expression.accepts(bytes(text)) else None
        if not moves:
            return None
        byte = random.choice([*moves])
        text.append(byte)
        state = moves[byte]
    return None


def changed(value: Any, random: Random) -> Any:
    """A value with one item or member less, more, or another one."""
    if isinstance(value, list) and value:
        at, drawn = random.randrange(len(value)), random.random()
        if drawn < 0.25:
            return value[:at] + value[at + 1 :]
        return [*value, value[-1]] if drawn < 0.5 else [*value[:at], changed(value[at], random), *value[at + 1 :]]
    if isinstance(value, dict) and value:
        key = random.choice([*value])
        if random.random() < 0.3:
            return {name: inner for name, inner in value.items() if name != key}
        return value | {key: changed(value[key], random)}
    return random.choice([7, 99, None, "x", [], True])


def test_long_heads_are_shared_without_a_change_of_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """With heads of two factors shared the masks of random languages are those of terms whose heads are all copied."""
    vocabulary, compared = doubling.vocabulary(), 0
    for seed in range(examples(40)):
        random = Random(seed)
        kind, source = languages.draw(random)
        made = list[TokenFSM]()
        for most in (10_000, 2):
            monkeypatch.setattr(nodes, "MAX_COPIED", most)
            try:
                made.append(TokenFSM(languages.build(kind, source), vocabulary))
            except FSMError:
                break
        if len(made) < 2:
            continue
        states = [one.initial_state for one in made]
        for _ in range(12):
            try:
                plain, shared = (one.allowed_token_ids(state).tolist() for one, state in zip(made, states, strict=True))
            except BudgetExceeded:
                break
            assert plain == shared, (seed, kind, source)
            compared += 1
            going = [token_id for token_id in plain if token_id != 256]
            if not going:
                break
            token_id = random.choice(going)
            states = [one.next_state(state, token_id) for one, state in zip(made, states, strict=True)]
    assert compared > examples(150)


def test_rules_of_parts_have_the_texts_of_the_parts() -> None:
    """Options, groups and counts that become rules, as too much would be written out, against what Lark writes out."""
    items = ['["a"]', '("b" | "ca")', '"d"?', '("e" | "f")~1..2', '("g" "h"?)*', '[("i" | "j") "k"?]', '("l" -> x | "m")']
    for seed in range(examples(12)):
        random = Random(seed)
        text = "start: " + " ".join(random.choices(items[:-1], k=5)) + "\n  | " + " ".join(random.choices(items[:-1], k=4))
        try:
            plain = grammar(text)
        except GrammarError:  # Lark refuses productions that are equal
            continue
        parts = grammar(text, limits=Limits(max_expansion=400))
        assert any(part.kind is Kind.RULE and "_part_" in part.args[0].name for part in nodes.all_parts(parts.node))
        for expression, other in ((plain, parts), (parts, plain)):
            for _ in range(20):
                found = written(expression, random, 60)
                assert found is None or other.accepts(found), (text, found)


def test_a_forced_text_is_read_at_once() -> None:
    for pattern in ("(?:a{100}){100}", "(?:ab{70}c){9}", "abc{3,5}", "(?:abc){2,}", "x{300}a?", "(?:(?:ab){10}c{7}){20}x*", "é{40}[ab]"):
        automaton = Automaton(regex(pattern).node)
        state, text = Automaton.initial_state, bytearray()
        while not automaton.is_accepting(state) and len(moves := automaton.moves(state)) == 1:
            ((byte, state),) = moves.items()
            text.append(byte)
        assert automaton.forced(Automaton.initial_state) == (bytes(text), state)
    automaton = Automaton(regex("(a{1000}){1000}").node)
    assert len(automaton.forced_text(Automaton.initial_state)) == 65_536
    assert len(automaton.nodes) < 10
