"""Random schemas and grammars whose references double: level n names level n + 1 twice or more, so that a few hundred bytes stand for 2^n
parts. Each must compile, or be refused, in about as many steps of work as its text has parts; so must the first steps of a random text.
"""

from __future__ import annotations

import itertools
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from time import monotonic, process_time
from typing import Any

from fsm import Expression, FSMError, TokenFSM, Vocabulary, gbnf, grammar, json_schema, regex
from fsm.bitmask import to_ids
from fsm.terms import work
from tests.fuzz.masks import Counts

KINDS = ["schema"] * 4 + ["schema in any order", "grammar", "grammar", "dialect", "gbnf", "regex", "expression"]
MAX_DEPTH, MAX_MEGABYTES, NUM_STEPS = 64, 200, 20
MAX_SECONDS, MAX_STEP_SECONDS = 10, 3  # of the processor; each mask has a budget of work
MAX_WORK = 300_000  # `Limits.max_work` twice, as a schema may be compiled again with more left to checks, and what follows it
_EOS = 256

Schema = Any
Form = Callable[[Random, Schema, int], Schema]

_SCHEMAS: list[Form] = [
    lambda r, ref, n: {"type": "array", "prefixItems": [ref] * r.randint(2, 3), "minItems": r.randint(0, 3)},
    lambda r, ref, n: {"type": "array", "prefixItems": [ref, ref], "minItems": 2, "items": False},
    lambda r, ref, n: {"type": "array", "items": ref, "minItems": 2, "maxItems": 2 + r.randint(0, 1)},
    lambda r, ref, n: {"type": "array", "items": ref, "minItems": r.randint(0, 2)},
    lambda r, ref, n: {"type": "array", "items": ref, "contains": ref, "maxItems": 3},
    lambda r, ref, n: {"type": "object", "properties": {"a": ref, "b": ref}, "required": r.choice([["a", "b"], ["b"], []])},
    lambda r, ref, n: {
        "type": "object", "properties": {"a": ref, "b": ref, f"c{n}": ref}, "required": ["a", f"c{n}"], "additionalProperties": False
    },
    lambda r, ref, n: {"type": "object", "additionalProperties": ref, "minProperties": 2, "maxProperties": 3},
    lambda r, ref, n: {"type": "object", "patternProperties": {"^a": ref, "b$": ref}},
    lambda r, ref, n: {"type": "object", "allOf": [{"properties": {"a": ref}}, {"properties": {"a": ref, "b": ref}}]},
    lambda r, ref, n: {"allOf": [ref, ref]},
    lambda r, ref, n: {"anyOf": [ref, {"type": "array", "items": ref, "minItems": 1}]},
    lambda r, ref, n: {
        "anyOf": [{"type": "array", "prefixItems": [ref, ref], "minItems": 2}, {"properties": {"a": ref}, "required": ["a"]}]
    },
    lambda r, ref, n: {"oneOf": [{"type": "null"}, {"type": "array", "prefixItems": [ref, ref], "minItems": 2, "maxItems": 2}]},
    lambda r, ref, n: {"type": "array", "prefixItems": [ref, ref], "not": {"type": "array", "prefixItems": [{"const": n}, ref]}},
    lambda r, ref, n: {"if": {"type": "array"}, "then": {"items": ref, "maxItems": 2}, "else": ref},
]  # fmt: skip
_LEAVES: list[Schema] = [
    {"type": "integer", "minimum": 0, "maximum": 12}, {"type": "boolean"}, {"enum": ["x", "y", 1]}, {"type": "string", "maxLength": 2},
]  # fmt: skip
_RULES = ["{} {}", "{}? {}", '{} "x" | {}', "{}~2..3", '({} | "b" {})+', "[{}] {}", '{} ({} | "c")', "{}* {}", '("d" | {})? ("e" | {})?']
_TERMINALS = ["{} {}", '{} "x" | {} "y"', "{}~2", "{}? {}", '({} | "z") {}', "{} /[0-9]/ {}"]
_DIALECT = ["{} {}", "{} & ({} | /[a-z]+/)", "{}{{2}}", "{}{{2,}} {}", '{} "x" | {} "y"']
_GBNF = ["{} {}", "{}? {}", '{} "x" | {}', "{}{{2,3}} {}*", '({} | {} "b")*', "{}? {}?"]

_PATTERNS = ["(?:{}){{2}}b", "(?:{}){{2,3}}b", "(?:{})?c", "(?:{}|b){{2}}", "(?:{})+d", "(?:{}){{1000}}"]
_SUMS: list[Callable[[Expression], Expression]] = [
    lambda one: one + one,
    lambda one: (one | "") + one,
    lambda one: one | (one + "x"),
    lambda one: one.repeat(2, 2) + "c",
    lambda one: (one + "x").repeat(2, 3),
    lambda one: one + "x" + one,
]


def draw(seed: int, most: int = MAX_DEPTH) -> tuple[str, Any, int]:
    """A kind, the source of a language of that kind, and how many levels it has."""
    random = Random(seed)
    kind, depth = random.choice(KINDS), random.choice([random.randint(1, most), most])
    if kind.startswith("schema"):
        return kind, schema(random, depth), depth
    if kind == "grammar":
        if random.random() < 0.3:
            return kind, "start: " + " ".join(_optional(random, n) for n in range(depth)), depth
        terminals = random.random() < 0.4
        return kind, _lines(random, depth, "T" if terminals else "r", _TERMINALS if terminals else _RULES, "start: {}", ":"), depth
    if kind == "dialect":
        return kind, _lines(random, depth, "T", _DIALECT, 'start: {} "q"{{2}}', ":"), depth
    if kind == "gbnf":
        return kind, _lines(random, depth, "r", _GBNF, "root ::= {}", "::="), depth
    return kind, [random.randrange(6) for _ in range(depth)], depth


def schema(random: Random, depth: int) -> Schema:
    """A schema whose definitions each name the next several times."""
    forms = random.sample(_SCHEMAS, random.randint(1, 3))
    names = [{"$ref": f"#/$defs/d{n}"} for n in range(depth + 1)]
    levels = {f"d{n}": random.choice(forms)(random, names[n + 1], n) for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": levels | {f"d{depth}": random.choice(_LEAVES)}}


def _lines(random: Random, depth: int, letter: str, forms: list[str], start: str, sign: str) -> str:
    few = random.sample(forms, random.randint(1, 2))
    lines = [start.format(f"{letter}0")]
    lines += [f"{letter}{n} {sign} {random.choice(few).format(*[f'{letter}{n + 1}'] * 2)}" for n in range(depth)]
    return "\n".join([*lines, f'{letter}{depth} {sign} "a"'])


def _optional(random: Random, n: int) -> str:
    return random.choice(['["a{}"]', '("a{}" | "b{}")', '"a{}"?', '"a{}"*', '("a{}" | "b{}")~0..2']).format(n, n)


def build(kind: str, source: Any) -> Expression:
    """The language; raises what the compiler raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("schema"):
            return json_schema(source, key_order="any" if kind.endswith("any order") else "schema")
        if kind in ("grammar", "dialect"):
            return grammar(source)
        if kind == "gbnf":
            return gbnf(source)
        if kind == "regex":
            pattern = "a"
            for form in source:
                pattern = _PATTERNS[form].format(pattern)
            return regex(pattern)
        found = regex("a|b")
        for form in source:
            found = _SUMS[form](found)
        return found


def vocabulary() -> Vocabulary:
    """The bytes and some longer tokens."""
    return Vocabulary([*(bytes((byte,)) for byte in range(_EOS)), None, b"[[", b"]]", b"],", b'{"a"', b"aa", b"ab"], [_EOS])


def walk(token_fsm: TokenFSM, random: Random, num_steps: int = NUM_STEPS) -> None:
    """Write some tokens."""
    state = token_fsm.initial_state
    for _ in range(num_steps):
        allowed = [token_id for token_id in to_ids(token_fsm.bitmask(state)).tolist() if token_id != _EOS]
        if not allowed:
            return
        state = token_fsm.next_state(state, random.choice(allowed))


def problem(seed: int, tokens: Vocabulary, counts: Counts, num_steps: int = NUM_STEPS) -> str:
    """What is wrong with the language of a seed; empty where nothing is."""
    kind, source, depth = draw(seed)
    before, start, size = work.done(), process_time(), _megabytes()
    what, most, limit = "refused", MAX_WORK, MAX_SECONDS
    with suppress(FSMError):
        expression = build(kind, source)
        what, most, limit = "walked up to a bound", most * num_steps, limit + num_steps * MAX_STEP_SECONDS
        walk(TokenFSM(expression, tokens), Random(seed), num_steps)
        what = "walked"
    counts.of[what] += 1
    done, seconds, more = work.done() - before, process_time() - start, _megabytes() - size
    if done > most or seconds > limit or more > MAX_MEGABYTES:
        return f"{kind} of {depth} levels was {what} in {done:,} steps of work, {seconds:.1f} s and {more} MB: {source!r:.2000}"
    return ""


def _megabytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most >> 20 if sys.platform == "darwin" else most >> 10


def run(
    seed: int, seconds: float, counts: Counts, *, count: int | None = None, num_steps: int = NUM_STEPS, progress: float = 0
) -> Iterator[str]:
    """Check the languages of seed, seed + 1, ... for a time; yield what is wrong, and print the counts every `progress` seconds."""
    end, said, tokens = monotonic() + seconds, monotonic(), vocabulary()
    for number in itertools.count(seed):
        if monotonic() > end or number - seed == count:
            return
        found = problem(number, tokens, counts, num_steps)
        if found:
            yield f"seed {number}: {found}"
        if progress and monotonic() - said > progress:
            said = monotonic()
            print(counts, flush=True)
