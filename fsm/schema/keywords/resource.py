"""The dialects: the drafts of JSON Schema (3 to 2020-12), OpenAPI 3.0 and 3.1, by name or by the URI of the metaschema in `$schema`. An
unknown URI counts as the draft whose name is in it, else as the dialect around it; a member `openapi: 3.0.x` names one, too. Draft 5 is 4,
OpenAPI 3.1 is 2020-12. Each describes itself to `referencing`, tolerant of malformed schemas. `Dialect`: `place.py`.

`Resources`: resolves `$ref`, `$dynamicRef` and `$recursiveRef` to schemas and scopes. URIs and anchors are looked up in a registry of
the library `referencing` (the document, schemas given with it, metaschemas; nothing is fetched); JSON pointers and the dynamic scope are
walked here. The scope keeps only resources with a dynamic anchor that no outer one has, so that recursion meets finitely many scopes. A
`$ref` that names nothing is read once more loosely (`id` for `$id`, or a pointer from the root), then an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from jsonschema_specifications import REGISTRY
from referencing import Registry, Specification
from referencing.exceptions import NoSuchAnchor, Unresolvable
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012, DynamicAnchor

from fsm.errors import SchemaError, shorten
from fsm.schema.keywords.place import Dialect, Schema, Scope, expected, part_at


def _tolerant(draft: Specification[Any]) -> Specification[Any]:
    """A draft whose subschemas are found in malformed schemas, too, and in a list as `items`, which only older drafts have."""

    def subresources(contents: Any) -> Iterator[Any]:
        if isinstance(contents, dict) and isinstance(contents.get("items"), list):
            yield from (schema for schema in contents["items"] if isinstance(schema, dict))
            contents = {**contents, "items": {}}
        try:
            found = list(draft.subresources_of(contents))
        except (AttributeError, TypeError):
            return
        yield from (schema for schema in found if isinstance(schema, dict))

    return Specification(  # type: ignore[call-arg]
        name=draft.name,
        id_of=draft.id_of,
        subresources_of=subresources,
        maybe_in_subresource=draft.maybe_in_subresource,
        anchors_in=lambda _, contents: draft.anchors_in(contents),
    )


LATEST = Dialect("draft/2020-12", _tolerant(DRAFT202012), evaluates_contained=True)
DRAFT_3 = Dialect("draft-03", _tolerant(DRAFT3), "id", has_lonely_references=True)
OPENAPI_30 = Dialect("openapi-3.0", _tolerant(DRAFT202012), has_lonely_references=True, has_nullable=True)
DIALECTS = (
    LATEST,
    Dialect("draft/2019-09", _tolerant(DRAFT201909)),
    Dialect("draft-07", _tolerant(DRAFT7), has_lonely_references=True),
    Dialect("draft-06", _tolerant(DRAFT6), has_lonely_references=True),
    Dialect("draft-04", _tolerant(DRAFT4), "id", has_lonely_references=True),
    DRAFT_3,
    OPENAPI_30,
)
_BY_NAME = {d.name: d for d in DIALECTS} | {d.name.removeprefix("draft/"): d for d in DIALECTS}
_BY_NAME |= {"draft-05": _BY_NAME["draft-04"], "openapi-3.1": LATEST}  # drafts 4 and 5 have the same keywords
_DRAFT = re.compile(r"(?:draft[-/]?|json-schema\.org/)(?:0?(?P<number>[3-7])(?!\d)|(?P<date>20\d\d-\d\d))")
_NO_DRAFT = re.compile(r"https?://(?:www\.)?json-schema\.org/schema#?$")
_OPENAPI = re.compile(r"https?://spec\.openapis\.org/oas/(3\.[01])(?!\d)")
_STANDARD = re.compile(r"https?://(?:(?:www\.)?json-schema\.org|spec\.openapis\.org)/")


def dialect_named(name: str) -> Dialect:
    """Return the dialect that the option `dialect` names: `draft-07`, `2020-12`, `openapi-3.0`, or the URI of a metaschema.

    Raises:
        SchemaError: there is no such dialect.
    """
    found = None
    if isinstance(name, str):
        found = _BY_NAME.get(name) or (_by_uri(name) if "://" in name else None)
    if found is None:
        known = ", ".join(d.name for d in DIALECTS)
        raise expected(
            f"one of {known} as `dialect`", name, advice="Leave it out for schemas that name it in `$schema`"
        )
    return found


def _by_uri(uri: str) -> Dialect | None:
    """The draft whose name is part of the URI of a metaschema: that of the draft, in any spelling, or of an extension of it."""
    if (named := _OPENAPI.match(uri)) is not None:
        return _BY_NAME[f"openapi-{named[1]}"]
    if (named := _DRAFT.search(uri)) is not None:
        return _BY_NAME.get(named["date"] or f"draft-0{named['number']}")
    return LATEST if _NO_DRAFT.match(uri) else None


def is_known(uri: str) -> bool:
    """Whether a URI names the metaschema of a draft or of a version of OpenAPI, and not that of an extension."""
    return _STANDARD.match(uri) is not None and _by_uri(uri) is not None


def metaschema_of(uri: str) -> str | None:
    """The URI of the standard metaschema of which `uri` is another spelling, such as `https` for `http`; None: it is not one."""
    dialect = _by_uri(uri) if is_known(uri) and uri.removesuffix("#").endswith("/schema") else None
    return None if dialect is None or dialect.has_nullable else dialect.metaschema


def dialect_of(schema: Any, inherited: Dialect, pointer: str) -> Dialect:
    """Return the draft that a schema names in `$schema`, or else `inherited`, that of the schema around it.

    An unknown metaschema counts as an extension of the draft whose name is in its URI, or else of the inherited one. The schemas of a
    document of OpenAPI are written in the dialect of its version.

    Raises:
        SchemaError: `$schema` is not a string.
    """
    if not isinstance(schema, dict):
        return inherited
    name = schema.get("$schema")
    if name is None:
        version = schema.get("openapi")
        return OPENAPI_30 if isinstance(version, str) and re.match(r"3\.0(\.|$)", version) else inherited
    if not isinstance(name, str):
        advice = "Use 'https://json-schema.org/draft/2020-12/schema', or leave `$schema` out"
        raise expected("the URI of a draft", name, f"{pointer}/$schema", advice)
    return _by_uri(name) or inherited


ROOT_URI = "json-schema:///root"  # of a root that has no URI; the validator joins relative references to it


class Resources:
    """The schemas that the references of one document can name: its own, those given with it, the metaschemas.

    Args:
        root, given, dialect: the document, schemas by URI, the draft.
        is_last: whether `_loosely` is off: a reference that names nothing is an error at once.

    Raises:
        SchemaError: a given schema is not a schema, or names an unknown dialect.
    """

    def __init__(self, root: Schema, given: Mapping[str, Any], dialect: Dialect, *, is_last: bool = False) -> None:
        identifier = root.get(dialect.identifier) if isinstance(root, dict) else None
        uri = urldefrag(identifier)[0] if isinstance(identifier, str) else ""
        self.uri = uri or ROOT_URI
        self.root, self.dialect = root, dialect
        found = [(self.uri, dialect.specification.create_resource(root))]
        for name, schema in given.items():
            if not isinstance(schema, dict | bool):
                raise SchemaError(f"expected a schema under {name!r} in `registry`, received {shorten(schema)}")
            specification = dialect.specification
            with suppress(SchemaError):  # a malformed `$schema` is an error only where something refers to it
                specification = dialect_of(schema, dialect, "").specification
            found.append((urldefrag(name)[0], specification.create_resource(schema)))
        try:
            registry: Registry[Any] = REGISTRY
            self._registry = registry.with_resources(found).crawl()
        except (AttributeError, TypeError, ValueError):  # what the library raises for malformed values
            raise SchemaError(
                "expected URIs as `$id`, and names as `$anchor` and `$dynamicAnchor`; one of them, somewhere in the schema, is "
                "something else. Correct it or remove it"
            ) from None
        self._apart = {uri for uri, _ in found[1:]} | set(REGISTRY)
        self._other: Resources | None = None
        self._is_last = is_last
        self._names: dict[str, frozenset[str]] = {}

    def scope(self) -> Scope:
        """The root's scope."""
        return self._into(Scope(self.uri, (), self.dialect), self.uri, self.dialect, 0)

    def _into(self, scope: Scope, uri: str, dialect: Dialect, root: int) -> Scope:
        """The scope after a step into the resource `uri`, which joins the path if it has a dynamic anchor that no outer one has."""
        known = frozenset[str]().union(*map(self._dynamic_names, scope.path))
        path = (*scope.path, uri) if self._dynamic_names(uri) - known else scope.path
        return Scope(uri, path, dialect, root)

    def _dynamic_names(self, uri: str) -> frozenset[str]:
        """The dynamic anchors of a resource; the empty name stands for `$recursiveAnchor`."""
        if uri not in self._names:
            resource = self._registry.get(uri)
            names, stack = set[str](), [] if resource is None else [resource]
            while stack:
                part = stack.pop()
                names |= {anchor.name for anchor in part.anchors() if isinstance(anchor, DynamicAnchor)}
                stack += [below for below in part.subresources() if below.id() is None]
            contents = None if resource is None else resource.contents
            names |= {""} if isinstance(contents, dict) and contents.get("$recursiveAnchor") is True else set()
            self._names[uri] = frozenset(names)
        return self._names[uri]

    def find(self, reference: str, scope: Scope, pointer: str, *, is_dynamic: bool = False) -> tuple[Schema, Scope]:
        """Return the schema that a `$ref` or `$dynamicRef` in a scope names, and its scope; `pointer` is that of the keyword.

        Raises:
            SchemaError: it names nothing that is known.
        """
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        try:
            uri = self.absolute(base, scope)
        except ValueError as error:
            raise SchemaError(f"reference {shorten(reference)} is not a URI: {error}. Correct it", pointer) from None
        try:
            if not fragment or fragment.startswith("/"):
                return self._walk(uri, fragment, scope, reference)
            return self._anchor(uri, fragment, scope, is_dynamic=is_dynamic)
        except (Unresolvable, NoSuchAnchor, LookupError) as problem:
            found = None if is_dynamic or self._is_last else self._loosely(reference, scope, pointer)
            if found is not None:
                return found
            if isinstance(problem, NoSuchPlace):
                raise SchemaError(problem.args[0], pointer) from None
            raise SchemaError(
                f"reference {shorten(reference)} leads to {shorten(uri if uri != ROOT_URI else '#' + fragment)}, which is not "
                "there. Nothing is ever fetched: give the schema in `registry`, by its URI, or copy it into `$defs`",
                pointer,
            ) from None

    def absolute(self, reference: str, scope: Scope) -> str:
        """The URI that a reference in a scope names."""
        base, mark, fragment = reference.partition("#")
        return (urljoin(scope.uri, base) if base else scope.uri) + mark + fragment  # the library joins nothing to a URN

    def find_recursive(self, reference: str, scope: Scope, pointer: str) -> tuple[Schema, Scope]:
        """The same as `find` for a `$recursiveRef` (draft 2019-09), whose value is always `#`."""
        schema, found = self.find("#", scope, pointer)
        if isinstance(schema, dict) and schema.get("$recursiveAnchor") is True:
            for uri in scope.path:
                if "" in self._dynamic_names(uri):
                    return self.find(uri, scope, pointer)
        return schema, found

    def _loosely(self, reference: str, scope: Scope, pointer: str) -> tuple[Schema, Scope] | None:
        """Resolve a reference that names nothing by the rules of its draft; None if it still names nothing.

        A pointer may begin at the root although a schema on the way has an identifier; a schema may have the identifier of another
        draft (`id` for `$id`), and a metaschema another scheme.
        """
        base, _, fragment = reference.partition("#")
        known = metaschema_of(base)
        try:
            if known is not None and known != base:
                return self.find(f"{known}#{fragment}", scope, pointer)
            if reference.startswith("#/"):
                if scope.uri in self._apart:
                    return None
                return self._walk(self.uri, unquote(reference[1:]), self.scope(), reference)
            if self._other is None:
                other = dialect_named("draft-07" if self.dialect.identifier == "id" else "draft-04")
                other = replace(self.dialect, identifier=other.identifier, specification=other.specification)
                self._other = Resources(self.root, {}, other, is_last=True)
            return self._other.find(reference, self._other.scope(), pointer)[0], scope
        except (SchemaError, NoSuchPlace):
            return None

    def _walk(self, uri: str, fragment: str, scope: Scope, reference: str) -> tuple[Schema, Scope]:
        node: Any = self._registry[uri].contents
        scope = self._entered(node, uri, scope)
        for token in fragment.split("/")[1:]:
            try:
                node = part_at(node, token)
            except KeyError as missing:
                names = [shorten(name) for name in list(node)[:8]] if isinstance(node, dict) else []
                near = f" The keys there are {', '.join(names)}." if names else ""
                raise NoSuchPlace(
                    f"reference {shorten(reference)} leads nowhere: {shorten(missing.args[0])} is not there.{near} Correct it"
                ) from None
            scope = self.inside(node, scope)
        return node, scope

    def _anchor(self, uri: str, name: str, scope: Scope, *, is_dynamic: bool) -> tuple[Schema, Scope]:
        anchor = self._registry.anchor(uri, name).value
        if is_dynamic and isinstance(anchor, DynamicAnchor):
            for outer in scope.path:
                try:
                    candidate = self._registry.anchor(outer, name).value
                except (NoSuchAnchor, LookupError):
                    continue
                if isinstance(candidate, DynamicAnchor):
                    anchor, uri = candidate, outer
                    break
        schema = anchor.resource.contents
        root = self._registry[uri].contents
        return schema, self.inside(schema, self._into(scope, uri, self._dialect_of(root, uri), id(root)))

    def _dialect_of(self, root: Any, uri: str) -> Dialect:
        return self.dialect if root is self.root else dialect_of(root, self.dialect, uri)

    def _entered(self, root: Any, uri: str, scope: Scope) -> Scope:
        """The scope of a resource that was found under `uri`, which may be its own identifier or its key in the registry."""
        dialect = self._dialect_of(root, uri)
        own = root.get(dialect.identifier) if isinstance(root, dict) else None
        named = urldefrag(urljoin(uri, own))[0] if isinstance(own, str) else uri
        is_known = named in self._registry and self._registry[named].contents is root
        return self._into(scope, named if is_known else uri, dialect, id(root))

    def inside(self, schema: Any, scope: Scope) -> Scope:
        """The scope inside a schema, which may begin a resource of its own."""
        if not isinstance(schema, dict) or id(schema) == scope.root:
            return scope
        identifier = schema.get(scope.dialect.identifier)
        if not isinstance(identifier, str) or identifier.startswith("#"):
            return scope
        if scope.dialect.has_lonely_references and "$ref" in schema:
            return scope
        uri = urldefrag(urljoin(scope.uri, identifier))[0]
        return self._into(scope, uri, dialect_of(schema, scope.dialect, uri), id(schema))


class NoSuchPlace(LookupError):
    """A JSON pointer names no part of the document; `args[0]` is the message."""
