"""Objects: properties, patterns and names of keys, `required`, counts, `unevaluatedProperties`, members in order or in any order.

Keys fall into kinds: each declared one, and the languages into which `patternProperties`, `propertyNames` and the like divide all
others. Each kind has the values that all keywords together allow. In the order of the schema declared properties come as the
schemas name them (a name that is only in `required` comes after those), then the others; see `fsm/terms/optional_fields.py` for that,
and `fsm/terms/object_members.py` for any order and for counts. A key comes at most once: a declared one, or one of a few that a
pattern allows, by the automaton, another one by a check.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from fsm.automaton.lazy_dfa import Automaton
from fsm.automaton.transition_rows import bytes_of
from fsm.errors import BudgetExceeded, NotRegular
from fsm.schema.context import Context
from fsm.schema.key_kinds import KeyKinds
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.object import SomeMember
from fsm.schema.places.place import Conjunction, NegatedKeyword, Place, Steps, values_of
from fsm.schema.places.shape import Schema, escape
from fsm.schema.scalars.quoted import CHARACTERS, STRING, in_quotes, spelled
from fsm.schema.syntax import Syntax
from fsm.schema.value_check import DISTINCT_KEYS
from fsm.terms import node as nodes
from fsm.terms import work_budget as work
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, Node
from fsm.terms.object_members import MemberEntry, MemberTable
from fsm.terms.optional_fields import FieldList, fields

_OPEN = nodes.literal(b"{")
_CLOSE = nodes.literal(b"}")
_MAX_PATTERNS = 16  # patterns of keys whose languages are told from one another
_MAX_COARSE_PATTERNS = 2  # the same, where everything together was too much
_OBJECT_WORK, _PROPERTY_WORK = 20, 6
_MAX_FEW = 32  # keys of a language that are taken as if they were declared
_MAX_LENGTH = 200
_MAX_DUTIES = 3  # "some member ..." in one object
_OF_KEYS = frozenset({"patternProperties", "propertyNames"})
_OF_OTHER_KEYS = frozenset({"patternProperties", "additionalProperties", "unevaluatedProperties"})
_NONE: frozenset[str] = frozenset()
_NAMES_ONLY = {"type": "string"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """Keys that are not declared: their language, with quotes, which patterns and duties they meet, and their texts if few."""

    keys: Node
    patterns: frozenset[str] = frozenset()
    duties: frozenset[int] = frozenset()
    few: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Duty:
    """Some member has a key of a language, and a value."""

    owner: Place
    keys: Node
    value: Place


def object_node(places: Conjunction, context: Context) -> Steps:
    """The objects that satisfy all places."""
    declared = dict.fromkeys(name for _, value in values_of(places, "properties") for name in value)
    required = dict.fromkeys(name for _, value in values_of(places, "required") for name in value)
    names = declared | required
    pointer = places[0].pointer if places else ""
    context.limits.check("max_properties", len(names), "properties of an object", pointer)
    work.add(_OBJECT_WORK + _PROPERTY_WORK * len(names))
    work.check()
    keys = _Keys(places, context)
    if any(place.says(_OF_KEYS) or isinstance(place.schema, NegatedKeyword) for place in places):
        yield from keys.read()
    members: list[tuple[str, Node, bool]] = []
    for name in names:
        value = EMPTY if keys.forbids(name) else (yield keys.value_places(name))
        if value is not EMPTY:
            members.append((name, value, name in required))
        elif name in required:
            return EMPTY
        if context.is_outermost and name not in required and not context.is_possible(value):
            yield from _note_impossible(places, name, context)
    others: list[tuple[_Kind, Node]] = []
    for kind in keys.kinds(names):
        value = yield keys.places_of(kind)
        if value is not EMPTY and kind.few is not None:
            members += [(json.loads(word), value, False) for word in kind.few]
        elif value is not EMPTY:
            others.append((kind, value))
    lo, hi = KEYWORDS["minProperties"].merged(places, 0), KEYWORDS["maxProperties"].merged(places)
    if hi is None and any(context.is_possible(value) and context.is_possible(kind.keys) for kind, value in others):
        context.endless.append("maxProperties")
    for kind, _ in others if hi is not None else ():
        context.note_strings(kind.keys, "propertyNames")
    hi = None if hi is not None and not others and hi >= len(members) else hi
    lo = 0 if lo <= sum(member[2] for member in members) else lo
    if lo and others and context.is_strict:
        place = next(place for place, _ in values_of(places, "minProperties"))
        context.leave_out(place, "minProperties", "keys that are not declared might repeat")
    if (hi is not None and hi < max(len(required), lo)) or (not others and lo > len(members)):
        return EMPTY
    if context.key_order == "schema" and lo == 0 and hi is None and not keys.duties:
        first, later = _additional(others, context.syntax)
        node = nodes.concat(_OPEN, _members(members, first, later, context.syntax))
    else:
        entries = yield from _entries(members, others, keys, context)
        table = MemberTable(
            tuple(entries),
            lo=lo,
            hi=hi,
            duties=len(keys.duties),
            is_ordered=context.key_order == "schema",
            comma=context.syntax.comma,
            close=_CLOSE,
        )
        node = nodes.concat(_OPEN, table.members())
    return nodes.checked(node, DISTINCT_KEYS) if others and hi != 1 else node


_MEANT: tuple[Schema, ...] = (True, False, {"not": {}}, {"not": True})
"""Schemas of a property that is not there on purpose, and of one that may be any."""


def _note_impossible(places: Conjunction, name: str, context: Context) -> Generator[Conjunction, Node, None]:
    """Note the schemas that name an optional property and that no value satisfies; of two that exclude each other neither is."""
    for place, properties in values_of(places, "properties"):
        below = place.below(properties.get(name, True), "properties", name)
        (meant,) = context.document.behind((below,))
        if isinstance(meant.schema, dict) and [*meant.schema] == ["$dynamicRef"]:
            meant = context.document.resolve(meant, "$dynamicRef")
        if meant.schema not in _MEANT:
            alone = yield (below,)
            if not context.is_possible(alone):
                context.impossible[below.pointer] = below


def _entries(
    members: list[tuple[str, Node, bool]], others: list[tuple[_Kind, Node]], keys: _Keys, context: Context
) -> Generator[Conjunction, Node, list[MemberEntry]]:
    """The entries of a table: every member once for each set of duties that its value may do."""
    colon, found = context.syntax.colon, list[MemberEntry]()
    for slot, (name, _, is_required) in enumerate(members):
        places = keys.value_places(name)
        for done in keys.sets_of_duties(n for n, duty in enumerate(keys.duties) if keys.is_in(name, duty.keys)):
            value = yield (*places, *(keys.duties[number].value for number in done))
            if value is not EMPTY:
                key = nodes.literal(spelled(name))
                found.append(MemberEntry(key, nodes.concat(colon, value), slot, is_required, sum(1 << n for n in done)))
    for kind, _ in others:
        places = keys.places_of(kind)
        for done in keys.sets_of_duties(kind.duties):
            value = yield (*places, *(keys.duties[number].value for number in done))
            if value is not EMPTY:
                found.append(MemberEntry(kind.keys, nodes.concat(colon, value), duties=sum(1 << n for n in done)))
    return found


class _Keys:
    """What the places of one object say about keys."""

    def __init__(self, places: Conjunction, context: Context) -> None:
        self._places, self._context = places, context
        self._patterns: dict[str, Node] = {}
        self._names: list[Node] = []
        self.duties: list[_Duty] = []
        self._automata: dict[Node, Automaton] = {}
        self._loose: set[int] = set()
        self._declaring: dict[str, list[int]] | None = None
        self._watching: list[int] = []

    def read(self) -> Generator[Conjunction, Node, None]:
        """Compile the patterns, the schemas of names and the duties."""
        found = list(values_of(self._places, "patternProperties"))
        self._context.document.can_be_coarser |= bool(found)
        most = _MAX_COARSE_PATTERNS if self._context.document.is_coarse else _MAX_PATTERNS
        if len({pattern for _, schemas in found for pattern in schemas}) > most:
            for place, _ in found:
                self._context.leave_out(place, "patternProperties", "too many patterns")
                self._loose.add(id(place.schema))
            found = []
        for place, schemas in found:
            for pattern in schemas:
                self._read_pattern(place, pattern)
        for place, schema in values_of(self._places, "propertyNames"):
            node = yield self._name_places(place, schema)
            if node.is_checked:
                self._context.leave_out(place, "propertyNames", "keys would have to be checked")
            else:
                self._names.append(node)
        for place in self._places:
            if isinstance(place.schema, NegatedKeyword) and isinstance(place.schema.value, SomeMember):
                yield from self._read_duty(place, place.schema.value)

    def _name_places(self, place: Place, schema: object) -> Conjunction:
        only = self._context.document.make(_NAMES_ONLY, "names only")
        return place.below(only), place.below(schema, "propertyNames")  # type: ignore[arg-type]

    def _read_pattern(self, place: Place, pattern: str) -> Node | None:
        if pattern not in self._patterns:
            pointer = f"{place.at('patternProperties')}/{escape(pattern)}"
            try:
                found = in_quotes(KEYWORDS.strings_with(pattern, pointer, self._context.limits))
            except NotRegular:
                self._context.leave_out(place, "patternProperties", "the pattern is not regular")
                return None
            self._patterns[pattern] = found
        return self._patterns[pattern]

    def _read_duty(self, place: Place, member: SomeMember) -> Generator[Conjunction, Node, None]:
        if len(self.duties) == _MAX_DUTIES:
            self._context.leave_out(place, "not", "too many members to look for")
            return
        keys: list[Node] = [STRING]
        if member.key is not True:
            node = yield self._name_places(place, member.key)
            keys.append(node)
        patterns = [self._read_pattern(place, p) for p in member.known_patterns]
        if member.pattern is not None:
            patterns.append(self._read_pattern(place, member.pattern))
        if any(p is None for p in patterns) or any(k.is_checked for k in keys):
            self._context.leave_out(place, "not", "keys would have to be checked")
            return
        read = [p for p in patterns if p is not None]
        if member.pattern is not None:
            keys.append(read.pop())
        keys += [nodes.complement(p) for p in read]
        if member.known:
            keys.append(nodes.complement(nodes.words(map(spelled, member.known))))
        language = nodes.intersection(keys)
        self.duties.append(_Duty(place, language, place.below(member.schema, "properties")))

    def sets_of_duties(self, able: Iterable[int]) -> Iterator[tuple[int, ...]]:
        """The sets of duties that a member may do, of those that its key is able to do; one that any value does is in each."""
        able = sorted(able)
        always = [number for number in able if self.duties[number].value.schema is True]
        others = [number for number in able if number not in always]
        for size in range(len(others) + 1):
            for chosen in combinations(others, size):
                yield (*always, *chosen)

    def is_in(self, name: str, keys: Node) -> bool:
        """True when a name belongs to a language of keys."""
        automaton = self._automata.get(keys)
        if automaton is None:
            automaton = self._automata[keys] = Automaton(keys)
        return automaton.accepts(spelled(name))

    def forbids(self, name: str) -> bool:
        """True when no object may have this key."""
        return not all(self.is_in(name, node) for node in self._names)

    def value_places(self, name: str) -> Conjunction:
        """The schemas that hold for the property `name`."""
        matched = (
            frozenset(p for p, node in self._patterns.items() if self.is_in(name, node)) if self._patterns else _NONE
        )
        found: list[Place] = []
        for place in self._speakers(name):
            found += self._at(place, name, matched)
            if place.has("unevaluatedProperties") and not self._is_evaluated(place, name, matched):
                found.append(place.below(place.get("unevaluatedProperties"), "unevaluatedProperties"))
        return tuple(found)

    def _speakers(self, name: str) -> Iterable[Place]:
        """The places that may say something of the property `name`, in their order. Cost: not that of all places."""
        if len(self._places) == 1:
            return self._places
        if self._declaring is None:
            self._declaring = {}
            for number, place in enumerate(self._places):
                if place.says(_OF_OTHER_KEYS):
                    self._watching.append(number)
                else:
                    for known in place.get("properties") or {}:
                        self._declaring.setdefault(known, []).append(number)
        return [self._places[number] for number in sorted((*self._declaring.get(name, ()), *self._watching))]

    def places_of(self, kind: _Kind) -> Conjunction:
        """The schemas that hold for members of one kind."""
        found: list[Place] = []
        matched = kind.patterns
        for place in self._places:
            found += self._at(place, None, matched)
            if place.has("unevaluatedProperties") and not self._is_evaluated(place, None, matched):
                found.append(place.below(place.get("unevaluatedProperties"), "unevaluatedProperties"))
        return tuple(found)

    def _at(self, place: Place, name: str | None, matched: frozenset[str]) -> list[Place]:
        """What the keywords of one place say of a member."""
        found: list[Place] = []
        properties = place.get("properties") or {}
        if name is not None and name in properties:
            found.append(place.below(properties[name], "properties", name))
        if matched and place.has("patternProperties"):
            patterns = place.get("patternProperties")
            found += [place.below(patterns[p], "patternProperties", p) for p in patterns if p in matched]
        if id(place.schema) in self._loose:
            return found
        if not found and place.has("additionalProperties"):
            found.append(place.below(place.get("additionalProperties"), "additionalProperties"))
        return found

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
        """The languages into which all keys fall that are not declared."""
        rest = CHARACTERS
        if declared:
            known = nodes.complement(nodes.words(spelled(name)[1:-1] for name in declared))
            rest = nodes.intersection((CHARACTERS, known))
        keys = in_quotes(rest)
        if not self._patterns and not self._names and not self.duties:
            return [_Kind(keys)]
        base = nodes.intersection((keys, *self._names))
        divided = self._divided()
        if not divided.is_complete:
            return self._searched(_Kind(base))
        kinds = sorted(divided.found, key=lambda kind: [not kind >> n & 1 for n in range(len(self._languages))])
        found = []
        for number in kinds:
            few = divided.few_texts(number, 2 * _MAX_FEW)
            left = None if few is None else tuple(word for word in few if json.loads(word) not in declared)
            kind = self._kind(base, number, left if left is None or len(left) <= _MAX_FEW else None)
            if left is None and (not declared or divided.is_endless(number)):
                kind.keys.is_inhabited = True  # endlessly many texts minus finitely many: some text is left
            if left or (left is None and self._is_inhabited(kind.keys)):
                found.append(kind)
        self._context.limits.check("max_key_kinds", len(found), "kinds of keys", self._places[0].pointer)
        return found

    @property
    def _languages(self) -> tuple[Node, ...]:
        """What divides the keys: patterns, then duties."""
        return *self._patterns.values(), *(duty.keys for duty in self.duties)

    def _divided(self) -> KeyKinds:
        """The sets into which patterns and duties divide all keys, declared ones too; once for all objects that ask the same."""
        base, languages = nodes.intersection((STRING, *self._names)), self._languages
        known = self._context.key_kinds.get((base, languages))
        if known is None:
            known = KeyKinds(base, languages, self._context.derivatives)
            self._context.key_kinds[base, languages] = known
        return known

    def _kind(self, base: Node, number: int, few: tuple[bytes, ...] | None) -> _Kind:
        parts = [node if number >> n & 1 else nodes.complement(node) for n, node in enumerate(self._languages)]
        patterns = frozenset(pattern for n, pattern in enumerate(self._patterns) if number >> n & 1)
        duties = frozenset(n for n in range(len(self.duties)) if number >> len(self._patterns) + n & 1)
        return _Kind(nodes.intersection((base, *parts)), patterns, duties, few)

    def _searched(self, base: _Kind) -> list[_Kind]:
        """The kinds, looked for one by one where there are too many states to look at all together."""
        found = [base]
        for pattern, node in self._patterns.items():
            found = [part for kind in found for part in self._divide(kind, node, pattern=pattern)]
        for number, duty in enumerate(self.duties):
            found = [part for kind in found for part in self._divide(kind, duty.keys, duty=number)]
        return [replace(kind, few=_few_texts(kind.keys)) for kind in found if self._is_inhabited(kind.keys)]

    def _divide(self, kind: _Kind, node: Node, *, pattern: str | None = None, duty: int | None = None) -> list[_Kind]:
        inside = replace(kind, keys=nodes.intersection((kind.keys, node)))
        if pattern is not None:
            inside = replace(inside, patterns=kind.patterns | {pattern})
        if duty is not None:
            inside = replace(inside, duties=kind.duties | {duty})
        outside = replace(kind, keys=nodes.intersection((kind.keys, nodes.complement(node))))
        found = [part for part in (inside, outside) if self._is_inhabited(part.keys)]
        self._context.limits.check("max_key_kinds", len(found), "kinds of keys", self._places[0].pointer)
        return found

    def _is_inhabited(self, keys: Node) -> bool:
        try:
            return self._context.derivatives.is_inhabited(keys)
        except BudgetExceeded:
            return True


def _few_texts(keys: Node) -> tuple[bytes, ...] | None:
    """The texts of a language, ascending, if they are few: then no key of it needs a check to come only once."""
    derivatives, found, stack = Derivatives(), list[bytes](), [(keys, b"")]
    while stack:
        node, text = stack.pop()
        if node.nullable:
            found.append(text)
        arcs = derivatives.live_arcs(node)
        if len(found) > _MAX_FEW or len(text) > _MAX_LENGTH or sum(mask.bit_count() for mask, _ in arcs) > _MAX_FEW:
            return None
        stack += [(target, text + bytes((byte,))) for mask, target in arcs for byte in bytes_of(mask).tolist()]
        if len(stack) > _MAX_FEW * _MAX_FEW:
            return None
    return tuple(sorted(found))


def _additional(others: list[tuple[_Kind, Node]], syntax: Syntax) -> tuple[Node, Node]:
    """Additional members and the closing brace: as the first in the object, and after others."""
    if not others:
        return _CLOSE, _CLOSE
    return syntax.members(nodes.alternation(nodes.sequence((kind.keys, syntax.colon, value)) for kind, value in others))


def _members(members: list[tuple[str, Node, bool]], first: Node, later: Node, syntax: Syntax) -> Node:
    """Build from the end. `first` is what may come if no member came yet, `later` if some did.

    Members fall into runs of optional ones, each closed by a required one, the last run by the end of the object.
    """
    runs: list[list[tuple[str, Node, bool]]] = [[]]
    for member in members:
        runs[-1].append(member)
        if member[2]:
            runs.append([])
    for run in reversed(runs):
        if run:
            first, later = _run(run, first, later, syntax)
    return first


def _run(run: list[tuple[str, Node, bool]], first: Node, later: Node, syntax: Syntax) -> tuple[Node, Node]:
    """Put a run before what follows it; both are given as the first in the object and after other members."""
    words = tuple(spelled(name) for name, _, _ in run)
    if len(run) == 1 and run[0][2]:
        member = nodes.sequence((nodes.literal(words[0]), syntax.colon, run[0][1], later))
        return member, nodes.concat(syntax.comma, member)
    values = tuple(nodes.concat(syntax.colon, value) for _, value, _ in run)
    if run[-1][2]:
        members = fields(FieldList(words, values, syntax.comma, EMPTY, later))
        return members, nodes.concat(syntax.comma, members)
    members = fields(FieldList(words, values, syntax.comma, later, later))
    return nodes.alternation((first, members)), nodes.alternation((later, nodes.concat(syntax.comma, members)))
