"""Objects: `properties`, `required`, `additionalProperties`, members in the order of the schema.

Declared properties come in the order in which the schemas name them (a name that is only in `required` comes after those),
then the additional ones. An additional key is never a declared one; among themselves additional keys may repeat.
The term is linear in the number of properties; see `fsm/fields.py` for the optional ones.
"""

from __future__ import annotations

from fsm import node as nodes
from fsm.characters import JSON_CHARACTER
from fsm.fields import FieldList, fields
from fsm.limits import Limits
from fsm.node import EMPTY, Node
from fsm.schema.keyword import escape
from fsm.schema.place import Conjunction, Place, Steps, values_of
from fsm.schema.string import QUOTE, STRING, spelled
from fsm.schema.syntax import Syntax

_OPEN = nodes.literal(b"{")
_CLOSE = nodes.literal(b"}")


def object_node(places: Conjunction, syntax: Syntax, limits: Limits) -> Steps:
    """The objects that satisfy all places."""
    declared = dict.fromkeys(name for _, value in values_of(places, "properties") for name in value)
    required = dict.fromkeys(name for _, value in values_of(places, "required") for name in value)
    names = declared | required
    limits.check("max_properties", len(names), "properties of an object", places[0].pointer if places else "")
    members: list[tuple[str, Node, bool]] = []
    for name in names:
        value = yield _property_places(places, name)
        if value is not EMPTY:
            members.append((name, value, name in required))
        elif name in required:
            return EMPTY
    other = yield tuple(
        place.below(value, "additionalProperties") for place, value in values_of(places, "additionalProperties")
    )
    first, later = _additional(names, other, syntax)
    return nodes.concat(_OPEN, _members(members, first, later, syntax))


def _property_places(places: Conjunction, name: str) -> Conjunction:
    """The schemas that hold for the property `name`."""
    found: list[Place] = []
    for place in places:
        properties = place.get("properties") or {}
        if name in properties:
            found.append(Place(properties[name], f"{place.pointer}/properties/{escape(name)}"))
        elif place.has("additionalProperties"):
            found.append(place.below(place.get("additionalProperties"), "additionalProperties"))
    return tuple(found)


def _additional(names: dict[str, None], value: Node, syntax: Syntax) -> tuple[Node, Node]:
    """Additional members and the closing brace: as the first in the object, and after others."""
    if value is EMPTY:
        return _CLOSE, _CLOSE
    key = STRING
    if names:
        declared = nodes.complement(nodes.words(spelled(name)[1:-1] for name in names))
        key = nodes.sequence((QUOTE, nodes.intersection((nodes.repeat(JSON_CHARACTER), declared)), QUOTE))
    return syntax.members(nodes.sequence((key, syntax.colon, value)))


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
