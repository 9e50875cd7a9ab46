"""A schema document: its places are checked when first reached, references are resolved, values are split into cases."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fsm.errors import SchemaError
from fsm.expression import ReportLine
from fsm.limits import Limits
from fsm.schema.disjoint import are_disjoint
from fsm.schema.enumeration import pointer_to, schema_of, values_at
from fsm.schema.keyword import DIALECTS, KEYWORDS, Schema, check_known, check_schema, check_text, escape, shorten
from fsm.schema.place import Conjunction, Place

_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_SPLITTING = frozenset({"anyOf", "oneOf", "enum", "const"})
_OWN = frozenset(KEYWORDS) - _APPLICATORS - {"uniqueItems"}


class Document:
    """One schema with everything that its references can reach."""

    def __init__(self, root: Schema, limits: Limits) -> None:
        self.root = Place(root, "")
        self.limits = limits
        self.report: list[ReportLine] = []
        self._visited: set[int] = set()
        self._cases: dict[int, tuple[Place, ...]] = {}
        base = self.root.get("$id")
        self._base = base.rstrip("#") if isinstance(base, str) else None

    def alternatives(self, places: Conjunction) -> list[Conjunction]:
        """The ways to satisfy all places: each a list of places that hold together and have no `anyOf` or `$ref` left.

        Places without keywords of their own are left out, so that `()` means any value; no list at all: no value.

        Raises:
            SchemaError: a place is malformed, or a reference leads nowhere, or back to itself for the same value.
            BudgetExceeded: there are more than `max_alternatives`.
        """
        found: dict[tuple[int, ...], Conjunction] = {}
        stack: list[tuple[Conjunction, Conjunction, frozenset[int]]] = [((), places, frozenset())]
        while stack:
            done, todo, seen = stack.pop()
            if not todo:
                found.setdefault(tuple(id(p.schema) for p in done), done)
                self.limits.check(
                    "max_alternatives",
                    len(found) + len(stack),
                    "alternatives for one value",
                    places[0].pointer if places else "",
                )
                continue
            place, rest = todo[0], todo[1:]
            if place.schema is False:
                continue
            if place.schema is True or id(place.schema) in seen:
                stack.append((done, rest, seen))
                continue
            self._visit(place)
            seen |= {id(place.schema)}
            if place.has("enum") and place.has("const"):
                stack.append((done, (*self._parted(place), *rest), seen))
                continue
            own, branches = self._own_and_branches(place)
            if own is not None:
                done = (*done, own)
            always = (*self._always(place), *rest)
            if branches is None:
                stack.append((done, always, seen))
            else:
                stack.extend((done, (*chosen, *always), seen) for chosen in reversed(branches))
        return list(found.values())

    def _own_and_branches(self, place: Place) -> tuple[Place | None, list[Conjunction] | None]:
        """What a place says itself, and the cases that its `anyOf`, `oneOf` and listed values make."""
        own: Place | None = place if place.says(_OWN) else None
        if not place.says(_SPLITTING):
            return own, None
        choices: list[list[Conjunction]] = []
        for keyword in ("anyOf", "oneOf"):
            if place.has(keyword):
                branches = [
                    self._branch(place, schema, place.at(keyword), n) for n, schema in enumerate(place.get(keyword))
                ]
                for branch in branches:
                    self._visit(branch)
                if keyword == "oneOf" and not are_disjoint(branches, self.resolve):
                    raise SchemaError(
                        "`oneOf` whose branches are not told apart by type or by a required constant property is not "
                        "supported yet. Write `anyOf`",
                        place.at(keyword),
                    )
                choices.append([(branch,) for branch in branches])
        if own is not None and any(isinstance(value, dict | list) for value in values_at(place) or ()):
            cases = self._value_cases(place)
            own = None
            choices.append([(case, cases[0]) for case in cases[1:]])
        if not choices:
            return own, None
        combined: list[Conjunction] = [()]
        for options in choices:
            combined = [(*left, *right) for left in combined for right in options]
            self.limits.check("max_alternatives", len(combined), "alternatives for one value", place.pointer)
        return own, combined

    def _branch(self, place: Place, schema: Schema, pointer: str, position: int) -> Place:
        return place.beside(schema, f"{pointer}/{position}")

    def _value_cases(self, place: Place) -> tuple[Place, ...]:
        """The place without its listed values, then a place for its scalars and one for each list and object."""
        known = self._cases.get(id(place.schema))
        if known is not None:
            return known
        assert isinstance(place.schema, dict)
        values = values_at(place) or []
        rest = {k: v for k, v in place.schema.items() if k in _OWN - {"enum", "const"}}
        scalars = [value for value in values if not isinstance(value, dict | list)]
        schemas: list[tuple[Schema, str]] = [(rest, place.pointer)]
        if scalars:
            schemas.append(({"enum": scalars}, place.pointer))
        for value in values:
            if isinstance(value, dict | list):
                at = pointer_to(place, value)
                schemas.append((schema_of(value, at), at))
        cases = tuple(Place(schema, at) for schema, at in schemas)
        for case in cases:  # they say what the report says of `enum` and `const` already
            parts = (*(case.get("properties") or {}).values(), *(case.get("prefixItems") or ()))
            self._visited.update(id(part) for part in (case.schema, *parts))
        self._cases[id(place.schema)] = cases
        return cases

    def _parted(self, place: Place) -> tuple[Place, ...]:
        """A place that has both `enum` and `const`, as one without `const` and one with nothing else."""
        known = self._cases.get(id(place.schema))
        if known is None:
            assert isinstance(place.schema, dict)
            rest = {k: v for k, v in place.schema.items() if k != "const"}
            known = (place.beside(rest, place.pointer), place.beside({"const": place.schema["const"]}, place.pointer))
            self._visited.update(id(part.schema) for part in known)
            self._cases[id(place.schema)] = known
        return known

    def _always(self, place: Place) -> Conjunction:
        """The places that hold beside this one: by `$ref` and `allOf`."""
        found: list[Place] = []
        if not place.says(_APPLICATORS):
            return ()
        if place.has("$ref"):
            found.append(self.resolve(place))
        for position, schema in enumerate(place.get("allOf") or ()):
            found.append(self._branch(place, schema, place.at("allOf"), position))
        return tuple(found)

    def resolve(self, place: Place) -> Place:
        """The place that `$ref` of `place` names.

        Raises:
            SchemaError: it names no place of this document, or a place that refers back here without reading anything.
        """
        reference, pointer = place.get("$ref"), place.at("$ref")
        check_text(reference, pointer)
        schema, target = self._find(reference, pointer)
        check_schema(schema, target)
        if isinstance(schema, dict) and place.leads_back_to(schema):
            raise SchemaError(
                f"reference {shorten(reference)} leads back to itself without content, so that it says nothing. "
                "Put the reference inside `properties` or `items`, or remove it",
                pointer,
            )
        found = place.beside(schema, target)
        self._visit(found)
        self.limits.check("max_depth", found.depth, "references one behind the other", pointer)
        return found

    def _find(self, reference: str, pointer: str) -> tuple[Any, str]:
        base, _, fragment = reference.partition("#")
        if base and base != self._base:
            raise SchemaError(
                f"reference {shorten(reference)} leads out of the schema, which is not supported yet. Nothing is ever fetched; "
                "copy the schema into `$defs`",
                pointer,
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            raise SchemaError(
                f"reference {shorten(reference)} names an anchor, which is not supported yet. Use '#/$defs/...'",
                pointer,
            )
        node: Any = self.root.schema
        for token in fragment.split("/")[1:]:
            node = self._step(node, token.replace("~1", "/").replace("~0", "~"), reference, pointer)
        return node, fragment

    def _step(self, node: Any, token: str, reference: str, pointer: str) -> Any:
        if isinstance(node, dict) and token in node:
            inner = node[token]
            if isinstance(inner, dict) and isinstance(inner.get("$id"), str):
                raise SchemaError(
                    "an `$id` inside a schema is not supported yet. Remove it, and refer by '#/...'", pointer
                )
            return inner
        if isinstance(node, list) and token.isascii() and token.isdigit() and int(token) < len(node):
            return node[int(token)]
        near = f" There are {', '.join(shorten(k) for k in list(node)[:8])}." if isinstance(node, dict) and node else ""
        raise SchemaError(
            f"reference {shorten(reference)} leads nowhere: {shorten(token)} is not there.{near} Correct it", pointer
        )

    def _visit(self, place: Place) -> None:
        """Check the keywords of a place and write them into the report, once."""
        schema = place.schema
        if id(schema) in self._visited or not isinstance(schema, dict):
            return
        self._visited.add(id(schema))
        for keyword, value in schema.items():
            known = KEYWORDS.get(keyword)
            if known is None:
                check_known(keyword, place.pointer)
                continue
            known.check(value, f"{place.pointer}/{escape(keyword)}")
            self.report.append(ReportLine(f"{place.pointer}/{escape(keyword)}", keyword, "exact"))
        if "$id" in schema and place.pointer:
            raise SchemaError(
                "an `$id` inside a schema is not supported yet. Remove it, and refer by '#/...'", place.at("$id")
            )
        dialect = schema.get("$schema")
        if dialect is not None and (not isinstance(dialect, str) or dialect.rstrip("#") not in DIALECTS):
            raise SchemaError(
                f"unknown dialect {shorten(dialect)}. Use 'https://json-schema.org/draft/2020-12/schema'",
                place.at("$schema"),
            )
        self.limits.check("max_enum_values", len(schema.get("enum") or ()), "values of an enum", place.at("enum"))
