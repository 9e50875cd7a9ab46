"""`empty_place`: explains an unsatisfiable schema, by descending to the innermost subschema that is itself unsatisfiable and required. At
each step the required parts (references, `allOf`, an only branch, required properties, `items` where `minItems` needs them) are compiled
and tested for emptiness, along one path of at most 32 steps.

`SchemaOrigin`: explains why a schema rejects a text, as JSON pointers of keywords, by testing single keywords on the text again. A
keyword is blamed if no value that satisfies it, and `type` next to it, begins with the text (its own term is compiled and simulated), else
those that reject it only together. The breadth-first search goes from the root of the schema down to the last values of the text, through
at most 200 places, and reports at most 8 keywords. Nothing is prepared in advance.

Terms do not record their keywords, as equal ones are shared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fsm.automaton.checker import Checker, has_checks
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import FSMError, reference
from fsm.schema.context import KeyOrder
from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import ALL_TYPES, KEYWORDS, Keyword, Role
from fsm.schema.keywords.place import WATCHERS, Conjunction, Place
from fsm.schema.value_check import scan
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, Node

_MAX_DEPTH, _MAX_SEARCH = 32, 10_000


def is_empty(node: Node) -> bool:
    """Whether no text belongs to a term, by a search."""
    return node is EMPTY or not Derivatives(max_search=_MAX_SEARCH).is_inhabited(node)


def empty_place(document: Document, start: Place, build: Callable[[Place], Node]) -> Place:
    """Return the innermost required part of `start`, a place that no value satisfies, that no value satisfies either.

    Args:
        document: the schema.
        start: the place.
        build: makes the term of a place.

    Raises:
        FSMError: it takes too much work.
    """
    found = start
    for _ in range(_MAX_DEPTH):
        inner = next(
            (part for part in _needed(document, document.normalize_draft(found)) if is_empty(build(part))), None
        )
        if inner is None:
            break
        found = inner
    return found


def _needed(document: Document, place: Place) -> Iterator[Place]:
    """Yield the places that a value, or a part of it, must satisfy to satisfy a place."""
    if isinstance(place.schema, bool):
        return
    yield from (referred._replace(via=None) for referred in document.referred(place))
    for keyword in KEYWORDS.with_roles(place, Role.BRANCHES, Role.ALL):
        branches = place.get(keyword.name)
        if keyword.role is Role.ALL or len(branches) == 1:
            yield from (place.below(schema, keyword.name, number) for number, schema in enumerate(branches))
    properties = place.get("properties") or {}
    for name in place.get("required") or ():
        if name in properties:
            yield place.below(properties[name], "properties", name)
    if place.has("items") and (place.get("minItems") or 0) > len(place.get("prefixItems") or ()):
        yield place.below(place.get("items"), "items")


MAX_NAMED = 8
_MAX_VISITS = 200
_ORDER = ' (this key comes {} in the schema\'s order; `key_order="any"` allows it here)'
_FOLLOWED = (Role.REFERENCE, Role.ALL, Role.BRANCHES)


class _Begun(NamedTuple):
    """The text of a value, and whether it is complete; if not, it may continue."""

    text: bytes
    is_whole: bool


_Question = tuple[Place, _Begun]
"""Why does the schema at a place reject a value?"""
_Found = dict[str, str]
"""Pointers to the keywords that are blamed, each with a remark or an empty text."""
Build = Callable[[Conjunction, KeyOrder], Node]
"""Makes the term of some places, with the members of objects in an order."""


@dataclass(frozen=True, slots=True)
class SchemaOrigin:
    """The schema from which an expression was compiled.

    Attributes:
        read: reads it again: the document, and a function that builds terms of its places; so nothing is in memory before.
        is_ordered: whether members have the order of the schema.
    """

    read: Callable[[], tuple[Document, Build]]
    is_ordered: bool

    def names(self, text: bytes, is_whole: bool) -> tuple[str, ...]:
        """Pointers to at most 8 keywords that reject a text; none if no JSON value begins with it."""
        return _BlameSearch(*self.read(), self.is_ordered).names(_Begun(text, is_whole))


class _BlameSearch:
    """One search for the keywords of a document that reject a text."""

    def __init__(self, document: Document, build: Build, is_ordered: bool) -> None:
        self._document, self._build, self._is_ordered = document, build, is_ordered
        self._automata: dict[tuple[object, ...], Automaton] = {}

    def names(self, value: _Begun) -> tuple[str, ...]:
        """See `SchemaOrigin.names`."""
        if self._forbids(Place(True, ""), value):
            return ()
        found, questions = _Found(), [(self._document.root, value)]
        for number, question in enumerate(questions):
            if number >= _MAX_VISITS or len(found) >= MAX_NAMED:
                break
            with suppress(FSMError):  # a part that cannot be compiled alone explains nothing
                self._answer(*question, found, questions)
        return tuple(reference(at) + remark for at, remark in found.items())[:MAX_NAMED]

    def _answer(self, place: Place, value: _Begun, found: _Found, questions: list[_Question]) -> None:
        """Add the keywords to blame at one place, or further questions about the places that it applies."""
        place = self._document.normalize_draft(place)
        if not isinstance(place.schema, dict):
            if place.schema is False:
                found[place.pointer] = ""
            return
        before = len(found), len(questions)
        parts = list(_last_parts(value.text))
        for keyword in (KEYWORDS[name] for name in place.schema if name in KEYWORDS.enforced):
            if keyword.role in _FOLLOWED:
                questions += self._beside(place, keyword, value)
            elif keyword.parts is not None:
                for name, part in parts:
                    below = keyword.parts(place, place.get(keyword.name), name, partial(self._document.is_found, place))
                    questions += ((one, part) for one in below if part.text and self._forbids(one, part))
            elif keyword.is_blamed and self._is_to_blame(place, keyword, value):
                found[place.at(keyword.name)] = ""
        if (len(found), len(questions)) == before:
            found |= {place.at(name): remark for name, remark in self._blamed_together(place, value).items()}

    def _blamed_together(self, place: Place, value: _Begun) -> _Found:
        """The keywords of a place that reject a value only together: that of a key, or its position; or else all of them."""
        if value.text[:1] == b"{":
            keys = self._keys_only(place)
            if self._forbids(keys, value):
                return {"additionalProperties" if place.get("additionalProperties") is False else "properties": ""}
            allowed = not self._forbids(place, value)
            if self._is_ordered and place.has("properties") and self._forbids(keys, value, "schema"):
                return {"properties": _ORDER.format("earlier") if allowed else ""}
            keys = self._keys_only(place, "required")
            if self._is_ordered and place.has("required") and self._forbids(keys, value, "schema"):
                return {"required": _ORDER.format("later") if allowed else ""}
        if not self._forbids(place, value):
            return {}
        assert isinstance(place.schema, dict)
        watchers = [keyword for keyword in WATCHERS if place.has(keyword)]
        return dict.fromkeys(watchers or [keyword for keyword in place.schema if keyword in KEYWORDS.besides_type], "")

    def _beside(self, place: Place, keyword: Keyword, value: _Begun) -> Iterator[_Question]:
        """Questions about the places for the same value that a keyword applies."""
        if keyword.role is Role.REFERENCE:
            branches = [self._document.resolve(place, keyword.name)._replace(via=None)]
        else:
            schemas = keyword.shape.schemas(place.get(keyword.name))
            branches = [place.below(schema, keyword.name, *tokens) for tokens, schema in schemas]
        wrong = [branch for branch in branches if self._forbids(branch, value)]
        if keyword.role is Role.ALL or len(wrong) == len(branches):
            yield from ((branch, value) for branch in wrong)

    def _is_to_blame(self, place: Place, keyword: Keyword, value: _Begun) -> bool:
        """True if no value begins with the text that satisfies this keyword, and `type` next to it."""
        kept = {keyword.name, *keyword.companions}
        if self._forbids(self._part_of(place, kept), value):
            return True
        if not place.has("type") or keyword.types == ALL_TYPES:
            return False
        typed, only_type = self._part_of(place, kept | {"type"}), self._part_of(place, {"type"})
        return self._forbids(typed, value) and not self._forbids(only_type, value)

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

    def _forbids(self, place: Place, value: _Begun, order: KeyOrder = "any") -> bool:
        """True when no value of the place begins with the text, or is the text where that is complete."""
        key = (*place.key, order)
        if key not in self._automata:
            self._automata[key] = Automaton(self._build((place,), order))
        automaton = self._automata[key]
        state = automaton.next_state(Automaton.initial_state, value.text)
        if state == DEAD or (value.is_whole and not automaton.is_accepting(state)):
            return True
        root = automaton.nodes[Automaton.initial_state]
        if not has_checks(root):
            return False
        checker = Checker(root)
        reading = checker.read(checker.initial, value.text)
        return not reading.is_alive or (value.is_whole and checker.end(reading) is not True)


def _last_parts(text: bytes) -> Iterator[tuple[str | int, _Begun]]:
    """Yield the last two members or items in the text of an object or array, by key or index: a complete one, and one that is not."""
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
            yield number, _Begun(text[first:end].strip(), end is not None)
        elif middle is not None:
            yield json.loads(text[first:middle]), _Begun(text[middle + 1 : end].strip(), end is not None)
