r"""Compares random patterns of ECMA-262 with those of Node.js, with the flag `u`, and `i`, `m` or `s` where we write
`(?i)` or `(?i:...)`.

What is compared: whether a pattern is one, unless it is read loosely; and text by text whether it is found, by the automaton of plain text,
that of JSON strings, the backtracking matcher, a compiled schema (the second and the last of some), and as a key pattern in the words of
the validator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import jsonschema_rs

from fsm import BudgetExceeded, SchemaError, json_schema
from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import NotRegular
from fsm.pattern.ecma_matcher import EcmaMatcher
from fsm.pattern.ecma_pattern import backtracking_matcher, ecma_search, read_loosely
from fsm.schema.pattern_check import KeyPatterns, is_plain, with_written_keys
from fsm.terms.characters import json_spelling, json_text, utf8
from tests.node import Node

_ALPHABET = 'aaabbbABkKsSiI1_- \n\r\u2028\u0085\u00a0\t"\\éÉßẞſ\u212aıİΣσςµΜ٣α漢ー😀🇩👍🏽\u200d\ufeff\u0345\u1c80Ⓐⓐ𐐀𐐨ǅǆ\u0378\U000e0041'
_PROPERTIES = [*"LPC", "Lu", "Ll", "LC", "gc=Nd", "General_Category=Letter", "Sm", "Zs", "Cn", "Any", "ASCII", "Assigned", "Emoji", "EPres"]
_PROPERTIES += ["Script=Greek", "sc=Grek", "scx=Grek", "Script_Extensions=Latin", "sc=Han", "scx=Kana", "scx=Common", "sc=Inherited"]
_PROPERTIES += ["Alphabetic", "White_Space", "IDS", "Upper", "Lower", "AHex", "Cased", "CWU", "CWCF", "RI"]
_NO_PROPERTIES = ["RGI_Emoji", "Greek", "InGreek", "lu", "Script=greek", "sc=", "gc=Greek", "Emoji=Y", "Hrkt", "scx=Lu", ""]
_ATOMS = [*"abAksSéßσ1_- 😀𐐀ſı", ".", ".", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\n", r"\r", r"\u{1F600}", r"\ud83d\ude00"]
_ATOMS += [r"\u2028", r"\x41", r"\cJ", r"\.", r"\\", r"\/", r"\0", "ab"]
_PLAIN_ATOMS = [*"aaabbAs1_- é😀", "ab", r"\.", r"\\", r"\/", ".", r"\d", r"\w", r"\s", r"\S"]
_ASSERTIONS = ["^", "$", r"\b", r"\B"]
_COUNTS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}", "{1,2}?", "{0,}"]
_WRONG = [r"\b*", r"\B?", r"\1", r"\k<n>", r"\9", "(?<=a)*", "(?<!a){2}", "(?=a)*", "{", "}", "]", "a**", "[b-a]", r"[\d-x]", r"\-", r"\_",
          "(?<1>a)", r"\u{110000}", r"\c", r"\01", r"[\1]", "a{2,1}", r"\8", "(?:", ")", "^*", r"\k"]  # fmt: skip


def pattern(random: Random) -> str:
    """A pattern, rarely malformed."""
    return _Drawing(random).row(3)


class _Drawing:
    def __init__(self, random: Random) -> None:
        self._random, self._num_groups, self._is_plain = random, 0, random.random() < 0.2

    def row(self, depth: int) -> str:
        return "".join(self._part(depth) for _ in range(self._random.choice([1, 1, 2, 2, 3, 4])))

    def _part(self, depth: int) -> str:
        random, drawn = self._random, self._random.random()
        if self._is_plain:
            if depth and drawn < 0.2:
                return f"({random.choice(['', '?:'])}{self._ways(depth - 1)}){self._count()}"
            if drawn < 0.3:
                return random.choice(["^", "$"])
            return (self._set() if drawn < 0.4 else random.choice(_PLAIN_ATOMS)) + self._count()
        if drawn < 0.012:
            return random.choice(_WRONG)
        if drawn < 0.13:
            return random.choice(_ASSERTIONS)
        if drawn < 0.18 and self._num_groups:
            number = random.randint(1, self._num_groups + (random.random() < 0.1))
            return (rf"\{number}" if random.random() < 0.7 else rf"\k<g{number}>") + self._count()
        if depth and drawn < 0.42:
            return self._group(depth)
        return (self._set() if drawn < 0.55 else self._property() if drawn < 0.68 else random.choice(_ATOMS)) + self._count()

    def _group(self, depth: int) -> str:
        random, drawn = self._random, self._random.random()
        if drawn < 0.3:
            return f"{random.choice(['(?=', '(?!', '(?<=', '(?<!'])}{self._ways(depth - 1)})"
        if drawn < 0.55:
            return f"(?:{self._ways(depth - 1)}){self._count()}"
        self._num_groups += 1
        return f"({f'?<g{self._num_groups}>' if drawn < 0.8 else ''}{self._ways(depth - 1)}){self._count()}"

    def _ways(self, depth: int) -> str:
        return "|".join(self.row(depth) for _ in range(self._random.choice([1, 1, 2, 3])))

    def _count(self) -> str:
        return self._random.choice(_COUNTS) if self._random.random() < 0.35 else ""

    def _property(self) -> str:
        name = self._random.choice(_NO_PROPERTIES if self._random.random() < 0.01 else _PROPERTIES)
        return rf"\{self._random.choice('ppP')}{{{name}}}"

    def _set(self) -> str:
        random = self._random
        members = [
            random.choice(
                ["a", "b", "K", "s", "a-c", "A-Z", "_", "é-ö", "^", "-", r"\]", ".", "$", r"\b", r"\-", "α-ω", "😀-😎", "|", "&&", "ſ"]
            )
            if random.random() < 0.6
            else random.choice([r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\p{Lu}", r"\P{L}", r"\p{sc=Grek}", r"\u{10400}-\u{10410}"])
            for _ in range(random.randint(0, 3))
        ]
        return f"[{'^' * (random.random() < 0.35)}{''.join(members)}]"


@dataclass
class Counts:
    """What a run has done."""

    patterns: int = 0
    malformed: int = 0
    loose: int = 0
    plain: int = 0
    by_backtracking: int = 0
    undecided: int = 0
    texts: int = 0
    found: int = 0


def run(seed: int, seconds: float, counts: Counts, *, count: int | None = None, progress: float = 0) -> Iterator[str]:
    """Compare patterns from seeds on, and yield differences; `progress`: print the counts every so many seconds."""
    end = time.monotonic() + seconds
    said = time.monotonic()
    with Node() as node:
        for number in range(count if count is not None else 5_000):
            if time.monotonic() > end:
                break
            yield from compare(node, seed + number, counts)
            if progress and time.monotonic() - said > progress:
                said = time.monotonic()
                print(counts, flush=True)


def compare(node: Node, seed: int, counts: Counts) -> Iterator[str]:
    """Yield the differences of one pattern."""
    random = Random(seed)
    source, flags = pattern(random), random.choice(["u", "u", "u", "u", "iu", "su", "isu", "mu", "imu"])
    ours = source if flags == "u" else random.choice([f"(?{flags[:-1]}){source}", f"(?{flags[:-1]}:{source})"])
    texts = ["", *("".join(random.choices(_ALPHABET, k=random.choice([1, 1, 2, 2, 3, 4, 6]))) for _ in range(24))]
    expected = node.found(source, flags, texts)
    counts.patterns += 1
    where = f"seed {seed}: /{source}/{flags}"
    try:
        matcher = backtracking_matcher(ours)
    except SchemaError as error:
        counts.malformed += 1
        if not isinstance(expected, str):
            yield f"{where} is refused: {error}"
        return
    if isinstance(expected, str):
        counts.loose += 1
        if not [note for note in read_loosely(ours) if not note.startswith("(?")]:
            yield f"{where} is read, though it is malformed: {expected}"
        return
    counts.texts += len(texts)
    counts.found += expected.count(True)
    for name, found in _answers(random, ours, matcher, texts, counts):
        compared = zip(texts, expected, found, strict=True)
        wrong = [text for text, one, other in compared if None not in (one, other) and one != other]
        if wrong:
            yield f"{where}: {name} differs in {wrong[:5]!r}"


def _answers(
    random: Random, source: str, matcher: EcmaMatcher, texts: list[str], counts: Counts
) -> Iterator[tuple[str, list[bool | None]]]:
    yield "the matcher", [_decided(matcher.found_in, text, counts) for text in texts]
    try:
        plain, spelled = Automaton(ecma_search(source, utf8)), Automaton(ecma_search(source, json_spelling))
    except NotRegular:
        counts.by_backtracking += 1
    else:
        yield "the automaton", [_decided(plain.accepts, text.encode(), counts) for text in texts]
        if random.random() < 0.4:
            yield "the automaton of JSON", [_decided(spelled.accepts, json_text(text), counts) for text in texts]
    if random.random() < 0.2:
        try:
            expression = json_schema({"type": ["string", "null"], "pattern": source})
        except BudgetExceeded:
            counts.undecided += 1
        else:
            yield "the schema", [_decided(expression.accepts, json.dumps(text, ensure_ascii=False), counts) for text in texts]
    keys = KeyPatterns([{"patternProperties": {source: False}}])
    yield "the key pattern", [not _is_free(source, keys, text) for text in texts]
    if is_plain(source):
        counts.plain += 1
        validator = jsonschema_rs.validator_for({"pattern": source})
        yield "the plain pattern", [validator.is_valid(text) for text in texts]


def _decided(accepts: Any, text: Any, counts: Counts) -> bool | None:
    try:
        return bool(accepts(text))
    except BudgetExceeded:
        counts.undecided += 1
        return None


def _is_free(source: str, keys: KeyPatterns, key: str) -> bool:
    schema: dict[str, Any] = {"patternProperties": {source: False}}
    with_written_keys(schema, keys.for_value({key: 1}))
    return bool(jsonschema_rs.validator_for(schema).is_valid({key: 1}))
