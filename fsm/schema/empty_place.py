"""`empty_place`: explains an unsatisfiable schema, by descending to the innermost subschema that is itself unsatisfiable and required. At
each step the required parts (references, `allOf`, an only branch, required properties, `items` where `minItems` needs them) are compiled
and tested for emptiness, along one path of at most 32 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsm.schema.documents.document import Document
from fsm.schema.keywords.keyword import KEYWORDS, Role
from fsm.schema.places.place import Place
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
