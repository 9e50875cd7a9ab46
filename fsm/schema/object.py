"""`object_node`: the JSON objects that satisfy a conjunction of subschemas (places), as a term. Undeclared keys are divided into the
minterms of the key patterns; each declared key and each minterm has the values that all subschemas together allow. Members in the order of
the schema become `FieldList` terms; any order, counts and negations (some member must exist: a duty) a `MemberTable`. Left to checks:
repeated undeclared keys, key patterns that are too many or not regular, more than 3 duties, names that need a check.

The order is that in which the schemas list the properties, then names that are only in `required`, then the others. Languages of few keys
count as declared ones, so the automaton ensures that these are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Container, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import NotRegular
from fsm.schema.context import Context, Syntax
from fsm.schema.key_minterms import KeyMinterms, few_texts
from fsm.schema.keywords.keyword import KEYWORDS, counts_at
from fsm.schema.keywords.place import Builder, Conjunction, NegatedKeyword, Place, Schema, SomeMember, values_of
from fsm.schema.scalars.string import CHARACTERS, STRING, in_quotes, spelled
from fsm.schema.value_check import DISTINCT_KEYS
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.members import FieldList, MemberEntry, MemberTable, fields
from fsm.terms.node import EMPTY, Node

_OPEN = nodes.literal(b"{")
_CLOSE = nodes.literal(b"}")
_MAX_PATTERNS = 16  # patterns of keys that divide the keys of one object
_MAX_COARSE_PATTERNS = 2  # the same, where an exact compilation takes too much work
_OBJECT_WORK, _PROPERTY_WORK = 20, 6
_MAX_FEW = 32  # keys of a language that are treated as declared ones
_MAX_DUTIES = 3  # of one object
_NAMES_ONLY = {"type": "string"}
_NO_PATTERNS = frozenset[str]()


@dataclass(frozen=True, slots=True)
class _Kind:
    """A set of undeclared keys: its language, with quotes, the patterns and duties that they match, and the keys themselves if few."""

    keys: Node
    patterns: frozenset[str] = frozenset()
    duties: frozenset[int] = frozenset()
    few: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Duty:
    """The condition that some member has a key of a language and a value that satisfies a schema."""

    keys: Node
    value: Place


_Member = tuple[str, Node, bool]
"""A member: its name, its value, and whether it is required."""


def object_node(places: Conjunction, context: Context) -> Builder:
    """The objects that satisfy all places."""
    required = frozenset(name for _, value in values_of(places, "required") for name in value)
    names = _names(places)
    pointer = places[0].pointer if places else ""
    context.document.limits.check("max_properties", len(names), "properties of an object", pointer)
    work.add(_OBJECT_WORK + _PROPERTY_WORK * len(names))
    work.check()
    keys = _Keys(places, context)
    yield from keys.read()
    members = yield from _declared(places, names, required, keys, context)
    if members is None:
        return EMPTY
    others: list[tuple[_Kind, Node]] = []
    # Of a closed object, which is frequent, no language of other keys is made.
    open_value = None if keys.are_divided else (yield keys.schemas())
    for kind in () if open_value is EMPTY else keys.kinds(names):
        value = (yield keys.schemas(kind.patterns)) if open_value is None else open_value
        if value is not EMPTY and kind.few is not None:
            members += [(json.loads(word), value, False) for word in kind.few]
        elif value is not EMPTY:
            others.append((kind, value))
    lo, hi = counts_at(places, "Properties")
    _note_unbounded(others, hi, context)
    hi = None if hi is not None and not others and hi >= len(members) else hi
    lo = 0 if lo <= sum(member[2] for member in members) else lo
    if lo and others and context.is_strict:
        place = next(place for place, _ in values_of(places, "minProperties"))
        context.note_check(place, "minProperties", "keys that are not declared might repeat")
    if (hi is not None and hi < max(len(required), lo)) or (not others and lo > len(members)):
        return EMPTY
    is_ordered, syntax = context.key_order == "schema", context.syntax
    if is_ordered and lo == 0 and hi is None and not keys.duties:
        pairs = [nodes.sequence((kind.keys, syntax.colon, value)) for kind, value in others]
        closing = syntax.any_number(nodes.alternation(pairs), _CLOSE) if others else (_CLOSE, _CLOSE)
        node = _members(members, *closing, syntax)
    else:
        entries = yield from _entries(members, others, keys, context)
        node = MemberTable(
            tuple(entries),
            lo=lo,
            hi=hi,
            duties=len(keys.duties),
            is_ordered=is_ordered,
            comma=syntax.comma,
            close=_CLOSE,
        ).members()
    node = nodes.concat(_OPEN, node)
    return nodes.checked(node, DISTINCT_KEYS) if others and hi != 1 else node


def _names(places: Conjunction) -> dict[str, None]:
    """The declared names, in the order of the schemas: those of `properties` first."""
    found = ((names, value) for keyword, names in KEYWORDS.with_names for _, value in values_of(places, keyword))
    return dict.fromkeys(name for names, value in found for name in names(value))


def _declared(
    places: Conjunction, names: Iterable[str], required: Container[str], keys: _Keys, context: Context
) -> Generator[Conjunction, Node, list[_Member] | None]:
    """The declared members that some value satisfies; None if a required one has no value."""
    members: list[_Member] = []
    for name in names:
        value = EMPTY if keys.forbids(name) else (yield keys.value_places(name))
        if value is not EMPTY:
            members.append((name, value, name in required))
        elif name in required:
            return None
        if context.is_outermost and name not in required and not context.is_possible(value):
            yield from _note_impossible(places, name, context)
    return members


def _note_unbounded(others: list[tuple[_Kind, Node]], most: int | None, context: Context) -> None:
    """Note whether undeclared members, of which there are at most `most`, may make the object arbitrarily long."""
    if most is not None:
        for kind, _ in others:
            context.note_strings(kind.keys, "propertyNames")
    elif any(context.is_possible(value) and context.is_possible(kind.keys) for kind, value in others):
        context.missing_bounds.append("maxProperties")


_MEANT: tuple[Schema, ...] = (True, False, {"not": {}}, {"not": True})
"""Schemas with which a property is intentionally impossible, or not constrained."""


def _note_impossible(places: Conjunction, name: str, context: Context) -> Generator[Conjunction, Node, None]:
    """Note each schema of an optional property that no value satisfies; of two that exclude each other, neither is noted."""
    for place, properties in values_of(places, "properties"):
        below = place.below(properties.get(name, True), "properties", name)
        meant = context.document.dereference(below)
        if isinstance(meant.schema, dict) and len(meant.schema) == 1:
            meant = next(iter(context.document.referred(meant)), meant)
        if meant.schema not in _MEANT:
            alone = yield (below,)
            if not context.is_possible(alone):
                context.impossible[below.pointer] = below


def _entries(
    members: list[_Member], others: list[tuple[_Kind, Node]], keys: _Keys, context: Context
) -> Generator[Conjunction, Node, list[MemberEntry]]:
    """The entries of a table: each member once for every set of duties that its value may fulfil."""
    found = list[MemberEntry]()
    wanted: list[tuple[Node, Conjunction, Iterable[int], int | None, bool]] = []
    for number, (name, _, needed) in enumerate(members):
        able_to = [n for n, duty in enumerate(keys.duties) if keys.is_in(name, duty.keys)]
        wanted.append((nodes.literal(spelled(name)), keys.value_places(name), able_to, number, needed))
    wanted += ((kind.keys, keys.schemas(kind.patterns), kind.duties, None, False) for kind, _ in others)
    for key, places, able, slot, is_required in wanted:
        for done in keys.sets_of_duties(able):
            value = yield (*places, *(keys.duties[number].value for number in done))
            if value is not EMPTY:
                value = nodes.concat(context.syntax.colon, value)
                found.append(MemberEntry(key, value, slot, is_required, sum(1 << number for number in done)))
    return found


class _Keys:
    """The keywords on keys at the places of one object."""

    def __init__(self, places: Conjunction, context: Context) -> None:
        self._places, self._context = places, context
        self._patterns: dict[str, Node] = {}
        self._names: list[Node] = []
        self.duties: list[_Duty] = []
        self._automata: dict[Node, Automaton] = {}
        self._loose: set[int] = set()  # schemas with patterns that are left out, for which other keys are not known
        self._declaring: dict[str, list[int]] | None = None
        self._watching: list[int] = []

    def read(self) -> Generator[Conjunction, Node, None]:
        """Compile the patterns, the schemas of names and the duties."""
        found = list(values_of(self._places, "patternProperties"))
        self._context.can_be_coarser |= bool(found)
        most = _MAX_COARSE_PATTERNS if self._context.is_coarse else _MAX_PATTERNS
        if len({pattern for _, schemas in found for pattern in schemas}) > most:
            self._context.leave_out(((place, "patternProperties") for place, _ in found), "too many patterns")
            self._loose |= {id(place.schema) for place, _ in found}
            found = []
        for place, schemas in found:
            for pattern in schemas:
                self._read_pattern(place, pattern)
        for place, schema in values_of(self._places, "propertyNames"):
            node = yield self._name_places(place, schema)
            if node.is_checked:
                self._context.leave_out([(place, "propertyNames")], "keys would have to be checked")
            else:
                self._names.append(node)
        for place in self._places:
            if isinstance(place.schema, NegatedKeyword) and isinstance(place.schema.value, SomeMember):
                yield from self._read_duty(place, place.schema.value)

    def _name_places(self, place: Place, schema: Schema) -> Conjunction:
        only = self._context.document.make(_NAMES_ONLY, "names only")
        return place.below(only), place.below(schema, "propertyNames")

    def _read_pattern(self, place: Place, pattern: str) -> Node | None:
        if pattern not in self._patterns:
            pointer = place.at("patternProperties", pattern)
            try:
                found = in_quotes(KEYWORDS.strings_with(pattern, pointer, self._context.document.limits))
            except NotRegular:
                self._context.leave_out([(place, "patternProperties")], "the pattern is not regular")
                self._loose.add(id(place.schema))
                return None
            self._patterns[pattern] = found
        return self._patterns[pattern]

    def _read_duty(self, place: Place, member: SomeMember) -> Generator[Conjunction, Node, None]:
        if len(self.duties) == _MAX_DUTIES:
            self._context.leave_out([(place, "not")], "too many members to look for")
            return
        keys: list[Node | None] = [STRING]
        if member.key is not True:
            keys.append((yield self._name_places(place, member.key)))
        for pattern in member.known_patterns:
            found = self._read_pattern(place, pattern)
            keys.append(None if found is None else nodes.complement(found))
        if member.pattern is not None:
            keys.append(self._read_pattern(place, member.pattern))
        if member.known:
            keys.append(nodes.complement(nodes.words(map(spelled, member.known))))
        read = [node for node in keys if node is not None and not node.is_checked]
        if len(read) < len(keys):
            self._context.leave_out([(place, "not")], "keys would have to be checked")
        else:
            self.duties.append(_Duty(nodes.intersection(read), place.below(member.schema, "properties")))

    def sets_of_duties(self, able: Iterable[int]) -> Iterator[tuple[int, ...]]:
        """Yield the sets of duties that a value may fulfil, of those whose keys match; each contains those that every value fulfils."""
        known = sorted({*able})
        always = [number for number in known if self.duties[number].value.schema is True]
        others = [number for number in known if number not in always]
        for size in range(len(others) + 1):
            for chosen in combinations(others, size):
                yield (*always, *chosen)

    def is_in(self, name: str, keys: Node) -> bool:
        """True when a name belongs to a language of keys."""
        if keys not in self._automata:
            self._automata[keys] = Automaton(keys)
        return self._automata[keys].accepts(spelled(name))

    def forbids(self, name: str) -> bool:
        """True when no object may have this key."""
        return bool(self._names) and not all(self.is_in(name, node) for node in self._names)

    def value_places(self, name: str) -> Conjunction:
        """The schemas that apply to the property `name`."""
        matched = _NO_PATTERNS
        if self._patterns:
            matched = frozenset(pattern for pattern, node in self._patterns.items() if self.is_in(name, node))
        return self._schemas(name, matched, self._places_about(name))

    def schemas(self, matched: frozenset[str] = _NO_PATTERNS) -> Conjunction:
        """The schemas that apply to members that are not declared, and match some patterns."""
        return self._schemas(None, matched, self._places)

    @property
    def are_divided(self) -> bool:
        """True if patterns, schemas of names or duties divide or restrict the keys that are not declared."""
        return bool(self._patterns or self._names or self.duties)

    def _schemas(self, name: str | None, matched: frozenset[str], places: Iterable[Place]) -> Conjunction:
        """The schemas at some places for a member with a declared name, or another key (None), that matches some patterns."""
        found: list[Place] = []
        for place in places:
            found += self._at(place, name, matched)
            if place.has("unevaluatedProperties") and not self._is_evaluated(place, name, matched):
                found.append(place.below(place.get("unevaluatedProperties"), "unevaluatedProperties"))
        return tuple(found)

    def _places_about(self, name: str) -> Iterable[Place]:
        """The places that may constrain the property `name`, in their order, by an index, as there may be many places."""
        if len(self._places) == 1:
            return self._places
        if self._declaring is None:
            self._declaring = {}
            for number, place in enumerate(self._places):
                if place.has_any(KEYWORDS.of_other_members):
                    self._watching.append(number)
                else:
                    for known in place.get("properties") or {}:
                        self._declaring.setdefault(known, []).append(number)
        return [self._places[number] for number in sorted((*self._declaring.get(name, ()), *self._watching))]

    def _at(self, place: Place, name: str | None, matched: frozenset[str]) -> list[Place]:
        """The schemas that the keywords of one place apply to a member."""
        otherwise = None if id(place.schema) in self._loose else False
        return KEYWORDS.parts(place, name, lambda pattern, _: True if pattern in matched else otherwise)

    def _is_evaluated(self, watcher: Place, name: str | None, matched: frozenset[str]) -> bool:
        return any(
            place.counts_for(watcher)
            and (
                bool(self._at(place, name, matched))
                or id(place.schema) in self._loose
                or (place is not watcher and place.schema is not watcher.schema and place.has("unevaluatedProperties"))
            )
            for place in self._places
        )

    def kinds(self, declared: dict[str, None]) -> list[_Kind]:
        """The sets into which patterns and duties divide the keys that are not declared."""
        rest = CHARACTERS
        if declared:
            known = nodes.complement(nodes.words(spelled(name)[1:-1] for name in declared))
            rest = nodes.intersection((CHARACTERS, known))
        keys = in_quotes(rest)
        if not self.are_divided:
            return [_Kind(keys)]
        base = nodes.intersection((keys, *self._names))
        divided = self._divided()
        if not divided.is_complete:
            return self._searched(base)
        kinds = sorted(divided.found, key=lambda kind: [not kind >> n & 1 for n in range(len(self._languages))])
        found = []
        for number in kinds:
            few = divided.few_texts(number, 2 * _MAX_FEW)
            left = None if few is None else [word for word in few if json.loads(word) not in declared]
            kind = self._kind(base, number, left if left is None or len(left) <= _MAX_FEW else None)
            if left is None and (not declared or divided.is_infinite(number)):
                kind.keys.is_inhabited = True  # infinitely many texts without finitely many
            if left or (left is None and self._context.is_possible(kind.keys)):
                found.append(kind)
        self._limit_kinds(len(found))
        return found

    @property
    def _languages(self) -> tuple[Node, ...]:
        """The languages that divide the keys: patterns, then duties."""
        return *self._patterns.values(), *(duty.keys for duty in self.duties)

    def _divided(self) -> KeyMinterms:
        """The sets into which patterns and duties divide all keys, declared ones too; shared by all objects with the same languages."""
        key = nodes.intersection((STRING, *self._names)), self._languages
        known = self._context.key_minterms
        if key not in known:
            known[key] = KeyMinterms(*key, self._context.derivatives)
        return known[key]

    def _kind(self, base: Node, number: int, few: list[bytes] | None) -> _Kind:
        parts = [node if number >> n & 1 else nodes.complement(node) for n, node in enumerate(self._languages)]
        patterns = frozenset(pattern for n, pattern in enumerate(self._patterns) if number >> n & 1)
        duties = frozenset(n for n in range(len(self.duties)) if number >> len(self._patterns) + n & 1)
        return _Kind(nodes.intersection((base, *parts)), patterns, duties, None if few is None else tuple(few))

    def _searched(self, base: Node) -> list[_Kind]:
        """The sets, by testing each combination for emptiness where the product has too many states."""
        found = [(base, 0)]
        for n, node in enumerate(self._languages):
            sides = ((node, 1 << n), (nodes.complement(node), 0))
            parts = ((nodes.intersection((keys, side)), kind | bit) for keys, kind in found for side, bit in sides)
            found = [(keys, kind) for keys, kind in parts if self._context.is_possible(keys)]
            self._limit_kinds(len(found))
        derivatives = Derivatives()
        few = (few_texts(keys, lambda node: node.nullable, derivatives.live_arcs, _MAX_FEW) for keys, _ in found)
        return [self._kind(base, kind, texts) for (_, kind), texts in zip(found, few, strict=True)]

    def _limit_kinds(self, count: int) -> None:
        self._context.document.limits.check("max_key_kinds", count, "kinds of keys", self._places[0].pointer)


def _members(members: list[_Member], first: Node, later: Node, syntax: Syntax) -> Node:
    """Build declared members from the last to the first; `first` follows them if there is no member yet, `later` if there is one.

    Each group of optional members ends with a required one, the last group with the end of the object.
    """
    groups: list[list[_Member]] = [[]]
    for member in members:
        groups[-1].append(member)
        if member[2]:
            groups.append([])
    for group in reversed(groups):
        if group:
            first, later = _group(group, first, later, syntax)
    return first


def _group(group: list[_Member], first: Node, later: Node, syntax: Syntax) -> tuple[Node, Node]:
    """Prepend a group to `first` and `later`, and return both."""
    words = tuple(spelled(name) for name, _, _ in group)
    if len(group) == 1 and group[0][2]:
        member = nodes.sequence((nodes.literal(words[0]), syntax.colon, group[0][1], later))
        return member, nodes.concat(syntax.comma, member)
    values = tuple(nodes.concat(syntax.colon, value) for _, value, _ in group)
    if group[-1][2]:
        members = fields(FieldList(words, values, syntax.comma, EMPTY, later))
        return members, nodes.concat(syntax.comma, members)
    members = fields(FieldList(words, values, syntax.comma, later, later))
    return nodes.alternation((first, members)), nodes.alternation((later, nodes.concat(syntax.comma, members)))
