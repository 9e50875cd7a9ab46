"""`SchemaOrigin`: explains why a schema rejects a text, as JSON pointers of keywords, by testing single keywords on the text again.

Terms do not record the keywords that they come from, as equal ones are shared. A keyword is to blame if no value that satisfies it, and
`type` beside it, begins with the text: its own term is compiled and simulated. The breadth-first search goes from the root of the schema
down to the last value of the text, through at most 200 places, and reports at most 8 keywords. Nothing is prepared before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsm.automaton.checker import Checker, has_checks
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import FSMError, reference
from fsm.schema.context import KeyOrder
from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Keyword, Role
from fsm.schema.places.place import WATCHERS, Conjunction, Place
from fsm.schema.value_check import scan
from fsm.terms.node import Node

MAX_NAMED = 8
_MAX_VISITS = 200
_FOLLOWED = (Role.REFERENCE, Role.ALL, Role.BRANCHES)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a value in its text: a member of an object, or an item.

    Attributes:
        name: the key, or the number of an item.
        text: what is there of the value.
        is_whole: whether something follows it already.
    """

    name: str | int
    text: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Question:
    place: Place
    text: bytes
    is_whole: bool


Build = Callable[[Conjunction, KeyOrder], Node]
"""Makes the term of some places, with the members of objects in an order."""


@dataclass(frozen=True, slots=True)
class SchemaOrigin:
    """The schema from which an expression was compiled.

    Attributes:
        read: reads it again: the document, and the builder of terms of its places. So nothing is in memory until a text is explained.
        is_ordered: whether members come in the order of the schema.
    """

    read: Callable[[], tuple[Document, Build]]
    is_ordered: bool

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """Pointers to at most 8 keywords that reject a text; none where no JSON value begins with it."""
        return _BlameSearch(*self.read(), self.is_ordered).names(text, is_whole)


class _BlameSearch:
    """One search for the keywords of a document that reject a text."""

    def __init__(self, document: Document, build: Build, is_ordered: bool) -> None:
        self._document, self._build, self._is_ordered = document, build, is_ordered
        self._automata: dict[tuple[object, ...], Automaton] = {}

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """See `SchemaOrigin.names`."""
        if self._forbids(Place(True, ""), text, is_whole):
            return ()
        found, questions = dict[str, None](), [_Question(self._document.root, text, is_whole)]
        for number, question in enumerate(questions):
            if number >= _MAX_VISITS or len(found) >= MAX_NAMED:
                break
            try:
                self._ask(question, found, questions)
            except FSMError:  # a part that cannot be looked at alone says nothing
                continue
        return tuple(map(reference, found))[:MAX_NAMED]

    def _ask(self, question: _Question, found: dict[str, None], questions: list[_Question]) -> None:
        """Add what is to blame in one place, or further questions about the places that it leads to."""
        place = self._document.normalize_draft(question.place)
        if not isinstance(place.schema, dict):
            if place.schema is False:
                found[place.pointer] = None
            return
        before = len(found), len(questions)
        parts = list(_last_parts(question.text))
        for keyword in (KEYWORDS[name] for name in place.schema if name in KEYWORDS.enforced):
            if keyword.role in _FOLLOWED:
                questions += self._beside(place, keyword, question)
            elif keyword.parts is not None:
                for part in parts:
                    questions += self._below(place, keyword, part)
            elif keyword.is_blamed and self._is_to_blame(place, keyword, question):
                found[place.at(keyword.name)] = None
        if (len(found), len(questions)) != before:
            return
        blamed = self._blamed_for_key(place, question) if question.text[:1] == b"{" else None
        if blamed is not None:
            found[place.at(blamed)] = None
        else:
            self._blame_together(place, question, found)

    def _blamed_for_key(self, place: Place, question: _Question) -> str | None:
        """The keyword that does not allow a key, or not here."""
        keys, text, is_whole = self._keys_only(place), question.text, question.is_whole
        if self._forbids(keys, text, is_whole):
            return "additionalProperties" if place.get("additionalProperties") is False else "properties"
        if self._is_ordered and place.has("properties") and self._forbids(keys, text, is_whole, "schema"):
            return "properties"
        ordered = self._keys_only(place, "required")
        if self._is_ordered and place.has("required") and self._forbids(ordered, text, is_whole, "schema"):
            return "required"
        return None

    def _blame_together(self, place: Place, question: _Question, found: dict[str, None]) -> None:
        """Name the keywords of a place that forbid a text only together."""
        if not self._forbids(place, question.text, question.is_whole):
            return
        assert isinstance(place.schema, dict)
        left_over = [keyword for keyword in WATCHERS if place.has(keyword)]
        for keyword in left_over or [k for k in place.schema if k in KEYWORDS.besides_type]:
            found[place.at(keyword)] = None

    def _beside(self, place: Place, keyword: Keyword, question: _Question) -> Iterator[_Question]:
        """Questions about the places for the same value that a keyword leads to."""
        text, is_whole = question.text, question.is_whole
        if keyword.role is Role.REFERENCE:
            branches = [self._document.resolve(place, keyword.name)._replace(via=None)]
        else:
            schemas = keyword.shape.schemas(place.get(keyword.name))
            branches = [place.below(schema, keyword.name, *tokens) for tokens, schema in schemas]
        wrong = [branch for branch in branches if self._forbids(branch, text, is_whole)]
        if keyword.role is Role.ALL or len(wrong) == len(branches):
            yield from (_Question(branch, text, is_whole) for branch in wrong)

    def _below(self, place: Place, keyword: Keyword, part: _Part) -> Iterator[_Question]:
        """Questions about the places for a part of the value that a keyword leads to."""
        assert keyword.parts is not None
        for below in keyword.parts(place, place.get(keyword.name), part.name, partial(self._document.is_found, place)):
            if part.text and self._forbids(below, part.text, part.is_whole):
                yield _Question(below, part.text, part.is_whole)

    def _is_to_blame(self, place: Place, keyword: Keyword, question: _Question) -> bool:
        """True where no value begins with the text that satisfies this keyword, and `type` beside it."""
        assert isinstance(place.schema, dict)
        kept = {keyword.name, *keyword.companions}
        alone = self._part_of(place, kept)
        if self._forbids(alone, question.text, question.is_whole):
            return True
        if not place.has("type") or keyword.types == ALL_TYPES:
            return False
        typed, only_type = self._part_of(place, kept | {"type"}), self._part_of(place, {"type"})
        text, is_whole = question.text, question.is_whole
        return self._forbids(typed, text, is_whole) and not self._forbids(only_type, text, is_whole)

    def _part_of(self, place: Place, keywords: set[str]) -> Place:
        assert isinstance(place.schema, dict)
        part = {key: value for key, value in place.schema.items() if key in keywords}
        made = self._document.make(part, "alone", id(place.schema), *sorted(keywords))
        return place._replace(schema=made, via=None)

    def _keys_only(self, place: Place, *more: str) -> Place:
        """The constraints of a place on keys, with any values, and some of its other keywords."""
        made: dict[str, Any] = {keyword: place.get(keyword) for keyword in more if place.has(keyword)}
        for keyword in ("properties", "patternProperties"):
            made[keyword] = {key: schema is not False for key, schema in (place.get(keyword) or {}).items()}
        made["additionalProperties"] = place.get("additionalProperties") is not False
        return place._replace(schema=self._document.make(made, "keys only", id(place.schema), *more), via=None)

    def _forbids(self, place: Place, text: bytes, is_whole: bool, order: KeyOrder = "any") -> bool:
        """True when no value of the place begins with the text, or is the text."""
        key = (*place.key, order)
        automaton = self._automata.get(key)
        if automaton is None:
            automaton = self._automata[key] = Automaton(self._build((place,), order))
        state = automaton.next_state(Automaton.initial_state, text)
        if state == DEAD or (is_whole and not automaton.is_accepting(state)):
            return True
        root = automaton.nodes[Automaton.initial_state]
        if not has_checks(root):
            return False
        checker = Checker(root)
        reading = checker.read(checker.initial, text)
        return not reading.is_alive or (is_whole and checker.end(reading) is not True)


def _last_parts(text: bytes) -> Iterator[_Part]:
    """The last two parts of an object or array at whose text something does not fit: one that is whole, one that is not."""
    is_object = text[:1] == b"{"
    if not is_object and text[:1] != b"[":
        return
    spans: list[tuple[int, int | None, int | None]] = []  # start, colon, end
    start, colon = 1, None
    for depth, position, part in scan(text):
        if depth == 1 and part == b":":
            colon = position
        elif (depth == 1 and part == b",") or (depth == 0 and part in (b"}", b"]")):
            spans.append((start, colon, position))
            start, colon = position + 1, None
            if depth == 0:
                break
    else:
        spans.append((start, colon, None))
    for number, (first, middle, end) in list(enumerate(spans))[-2:]:
        if not is_object:
            yield _Part(number, text[first:end].strip(), end is not None)
        elif middle is not None:
            yield _Part(json.loads(text[first:middle]), text[middle + 1 : end].strip(), end is not None)
