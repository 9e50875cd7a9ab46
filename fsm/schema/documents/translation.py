"""`Translation`: a copy of a schema document in the keywords of draft 2020-12 (by `older_word.py`), for the validator, which knows only its
draft. It maps each original subschema to its JSON pointer in the copy, and rewrites local references (`#/...`). The schemas of a registry
are not translated, nor references through other identifiers. `needs_translation` is False where the validator reads the document correctly.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fsm.schema.documents.older_word import has_older_words, in_latest_words
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.place import Dialect
from fsm.schema.places.shape import Inside, Schema, escape, part_at

_OLDER = ("draft-04", "draft-06", "draft-07")
"""Drafts that have some of the older keywords themselves."""


class Translation:
    """A copy of a document in the keywords of draft 2020-12.

    Args:
        root: the document, which is not changed.
        dialect: its dialect.

    Attributes:
        root: the copy.
    """

    def __init__(self, root: Schema, dialect: Dialect) -> None:
        self._dialect, self._pointers = dialect, dict[int, str]()
        self._before, self._references = root, list[dict[str, Any]]()
        self.root: Schema = self._translated(root)
        for schema in self._references:
            schema["$ref"] = self.moved(schema["$ref"])

    def pointer_to(self, schema: Schema) -> str | None:
        """The pointer in the copy to a schema (an object, by identity) of the document."""
        return self._pointers.get(id(schema))

    def _translated(self, root: Schema) -> Schema:
        top: dict[str, Any] = {}
        todo: list[tuple[Any, Any, Any, str, bool]] = [(top, "", root, "", True)]
        while todo:
            holder, key, value, pointer, is_schema = todo.pop()
            if isinstance(value, list):
                holder[key] = found = list(value)
                parts = ((n, part) for n, part in enumerate(value) if isinstance(part, dict))
                todo += [(found, n, part, f"{pointer}/{n}", True) for n, part in parts]
            elif isinstance(value, dict):
                holder[key] = new = self._in_new_words(value, pointer) if is_schema else dict(value)
                for name, part in list(new.items()):
                    inside = KEYWORDS.inside(name) if is_schema else Inside.SCHEMA
                    if isinstance(part, dict | list) and inside is not Inside.VALUES:
                        at = f"{pointer}/{escape(str(name))}"
                        todo.append((new, name, part, at, inside is not Inside.SCHEMA_MAP))
            else:
                holder[key] = value
        return top[""]  # type: ignore[no-any-return]

    def _in_new_words(self, schema: dict[str, Any], pointer: str) -> dict[str, Any]:
        self._pointers.setdefault(id(schema), pointer)
        new = in_latest_words(schema, self._dialect)
        assert isinstance(new, dict)
        kept = {name: part for name, part in schema.items() if name not in KEYWORDS.enforced and name not in _REMOVED}
        new = {**kept, **new}
        if isinstance(schema.get(self._dialect.identifier), str) and self._dialect.identifier != "$id":
            new["$id"] = schema[self._dialect.identifier]
        if "$recursiveRef" in new:
            new["$ref"] = new.pop("$recursiveRef")
        if isinstance(new.get("$ref"), str):
            self._references.append(new)
        return new

    def moved(self, reference: str) -> str:
        """A local reference as one to the same schema in the copy."""
        node: Any = self._before
        if not reference.startswith("#/"):
            return reference
        for token in unquote(reference[2:]).split("/"):
            try:
                node = part_at(node, token)
            except KeyError:
                return reference
        return f"#{self._pointers[id(node)]}" if id(node) in self._pointers else reference


_REMOVED = frozenset(
    {"id", "$schema", "nullable", "dependencies", "additionalItems", "$recursiveRef", "$recursiveAnchor"}
)


def needs_translation(root: Schema, dialect: Dialect) -> bool:
    """Whether a validator of the draft would read a document differently from this package."""
    if dialect.name.startswith(("draft-03", "openapi")):
        return True
    todo: list[Any] = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if has_older_words(_without_own_words(value, dialect)):
                return True
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return False


def _without_own_words(schema: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The keywords of a schema except those that look older but belong to its draft."""
    if dialect.name not in _OLDER:
        return {name: part for name, part in schema.items() if name != "items" or dialect.name != "draft/2019-09"}
    bounds = ("exclusiveMinimum", "exclusiveMaximum") if dialect.name == "draft-04" else ()
    return {name: part for name, part in schema.items() if name not in ("dependencies", "items", *bounds)}
