"""The keywords of JSON Schema 2020-12: which are enforced, which only annotate, and what shape each has.

A keyword that is none of these annotates, as the standard says; where it looks like a misspelt keyword of the first kind, `meant_by`
says which. `Made` are the words for what no schema can say in one keyword (what is left of a `not`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from math import isfinite
from reprlib import Repr
from typing import Any

from fsm.errors import SchemaError
from fsm.terms.node import Node

Schema = dict[str, Any] | bool
JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$schema",
        "additionalItems",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "$dynamicAnchor",
        "$vocabulary",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
    }
)


class Made(StrEnum):
    """Keywords that no schema has: what a negation leaves."""

    RECURSIVE = "\0recursiveRef"  # what draft 2019-09 calls `$recursiveRef`
    TYPES = "\0types"  # a frozenset of JSON_TYPES; `number` stands for numbers that are not whole
    NOT_IN = "\0notIn"  # scalars that the value is none of
    NOT_PATTERN = "\0notPattern"
    NOT_FORMAT = "\0notFormat"
    NOT_MULTIPLE = "\0notMultipleOf"
    SOME_ITEM = "\0someItem"  # (start, schema): an item from `start` on satisfies the schema
    SOME_MEMBER = "\0someMember"  # a `Member`
    TEXT = "\0text"  # a `Text`: the strings that a Python type reads
    VALIDATOR = "\0validator"  # the name of a check that the document knows: Python code that looks at the value


@dataclass(frozen=True, slots=True)
class Member:
    """Asks an object for some member with this value, whose key satisfies the pattern and the schema of keys, and is none of the known."""

    schema: Schema = True
    pattern: str | None = None
    key: Schema = True
    known: tuple[str, ...] = ()
    known_patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """The inside of strings as a term, and what it leaves out, for people."""

    node: Node
    spelling: str


_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 2, 3, 4
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


def shorten(value: object) -> str:
    """A value for an error message, however large or deeply nested."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an int with more digits than Python prints
        return f"a very long {type(value).__name__}"


def escape(token: str) -> str:
    """Escape a key for use in a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def _expect(expected: str, value: object, pointer: str) -> SchemaError:
    return SchemaError(f"expected {expected}, received {shorten(value)}. Correct the schema", pointer)


def check_schema(value: object, pointer: str) -> None:
    """A schema: an object, true or false."""
    if not isinstance(value, dict | bool):
        raise _expect("a schema (an object, true or false)", value, pointer)


def _check_schema_list(value: object, pointer: str) -> None:
    if not isinstance(value, list) or not value:
        raise _expect("a list of at least one schema", value, pointer)
    for position, item in enumerate(value):
        check_schema(item, f"{pointer}/{position}")


def _check_schema_map(value: object, pointer: str) -> None:
    if not isinstance(value, dict):
        raise _expect("an object whose values are schemas", value, pointer)
    for key, item in value.items():
        check_text(key, pointer)
        check_schema(item, f"{pointer}/{escape(key)}")


def check_text(value: object, pointer: str) -> None:
    """A string that has UTF-8."""
    if not isinstance(value, str):
        raise _expect("a string", value, pointer)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise SchemaError(f"{shorten(value)} holds a lone surrogate, which has no UTF-8. Remove it", pointer)


def _check_texts(value: object, pointer: str) -> None:
    if not isinstance(value, list):
        raise _expect("a list of strings", value, pointer)
    for position, item in enumerate(value):
        check_text(item, f"{pointer}/{position}")


def _check_type(value: object, pointer: str) -> None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise _expect(f"one of {', '.join(JSON_TYPES)}, or a list of them", value, pointer)
    for name in names:
        if name not in JSON_TYPES:
            near = get_close_matches(str(name), JSON_TYPES, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SchemaError(
                f"expected a JSON type ({', '.join(JSON_TYPES)}), received {shorten(name)}.{hint}", pointer
            )


def is_number(value: object) -> bool:
    """True for a finite JSON number; bool is none."""
    if isinstance(value, float | Decimal):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _check_number(value: object, pointer: str) -> None:
    if not is_number(value):
        raise _expect("a finite number", value, pointer)


def _check_divisor(value: Any, pointer: str) -> None:
    if not is_number(value) or value <= 0:
        raise _expect("a number above zero", value, pointer)


def _check_count(value: Any, pointer: str) -> None:
    if not is_number(value) or value < 0 or value != int(value):
        raise _expect("a whole number of at least zero", value, pointer)


def _check_enum(value: object, pointer: str) -> None:
    if not isinstance(value, list):
        raise _expect("a list of values", value, pointer)
    for position, item in enumerate(value):
        if not isinstance(item, str) or not item.isascii():
            _check_value(item, f"{pointer}/{position}")


def _check_flag(value: object, pointer: str) -> None:
    if not isinstance(value, bool):
        raise _expect("true or false", value, pointer)


def _check_name_lists(value: object, pointer: str) -> None:
    if not isinstance(value, dict):
        raise _expect("an object whose values are lists of names", value, pointer)
    for key, names in value.items():
        check_text(key, pointer)
        _check_texts(names, f"{pointer}/{escape(key)}")


def _check_value(value: object, pointer: str) -> None:
    """Every text inside a value has UTF-8, so that the value can be written, or left out."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            check_text(part, pointer)
        elif isinstance(part, dict):
            stack += [*part, *part.values()]
        elif isinstance(part, list):
            stack += part


@dataclass(frozen=True, slots=True)
class Keyword:
    """An enforced keyword: `check` raises where its value has the wrong shape; `types` are those that it can reject."""

    check: Callable[[Any, str], None]
    types: frozenset[str] = frozenset()


_NUMERIC = frozenset({"integer", "number"})
_STRING = frozenset({"string"})
_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})

KEYWORDS: dict[str, Keyword] = {
    "type": Keyword(_check_type),
    "enum": Keyword(_check_enum),
    "const": Keyword(_check_value),
    "anyOf": Keyword(_check_schema_list),
    "oneOf": Keyword(_check_schema_list),
    "allOf": Keyword(_check_schema_list),
    "$ref": Keyword(check_text),
    "properties": Keyword(_check_schema_map, _OBJECT),
    "required": Keyword(_check_texts, _OBJECT),
    "additionalProperties": Keyword(check_schema, _OBJECT),
    "items": Keyword(check_schema, _ARRAY),
    "prefixItems": Keyword(_check_schema_list, _ARRAY),
    "minItems": Keyword(_check_count, _ARRAY),
    "maxItems": Keyword(_check_count, _ARRAY),
    "uniqueItems": Keyword(_check_flag, _ARRAY),
    "contains": Keyword(check_schema, _ARRAY),
    "minContains": Keyword(_check_count, _ARRAY),
    "maxContains": Keyword(_check_count, _ARRAY),
    "unevaluatedItems": Keyword(check_schema, _ARRAY),
    "patternProperties": Keyword(_check_schema_map, _OBJECT),
    "propertyNames": Keyword(check_schema, _OBJECT),
    "minProperties": Keyword(_check_count, _OBJECT),
    "maxProperties": Keyword(_check_count, _OBJECT),
    "unevaluatedProperties": Keyword(check_schema, _OBJECT),
    "dependentRequired": Keyword(_check_name_lists, _OBJECT),
    "dependentSchemas": Keyword(_check_schema_map, _OBJECT),
    "not": Keyword(check_schema),
    "if": Keyword(check_schema),
    "then": Keyword(check_schema),
    "else": Keyword(check_schema),
    "$dynamicRef": Keyword(check_text),
    "minLength": Keyword(_check_count, _STRING),
    "maxLength": Keyword(_check_count, _STRING),
    "pattern": Keyword(check_text, _STRING),
    "format": Keyword(check_text, _STRING),
    "minimum": Keyword(_check_number, _NUMERIC),
    "maximum": Keyword(_check_number, _NUMERIC),
    "exclusiveMinimum": Keyword(_check_number, _NUMERIC),
    "exclusiveMaximum": Keyword(_check_number, _NUMERIC),
    "multipleOf": Keyword(_check_divisor, _NUMERIC),
}


_LONGEST_NOUN = 6  # `formats` says something else
_JOINT = re.compile(r"(?<=[a-zA-Z])[_-](?=[a-zA-Z])")


def meant_by(word: str, value: object) -> str | None:
    """The enforced keyword that an unknown one looks like, misspelt; None: it is a note of somebody.

    A misspelling is made of letters and takes the value of the keyword. It differs in case, or by what a typist does: one letter left
    out, doubled or replaced, two neighbours swapped. Short keywords, and `const`, which takes any value, are too near to other words for
    a letter to be left out or replaced. `min_length` and `min-length` are spelled as elsewhere, with nothing else amiss; `requireds` is a
    plural, as `types` and `formats` need not be.
    """
    letters = _JOINT.sub("", word)
    if word in ANNOTATIONS or not (letters.isascii() and letters.isalpha()):
        return None
    is_joined = letters != word
    for keyword, known in KEYWORDS.items():
        is_distinct = len(keyword) > 4 and known.check is not _check_value
        is_same = letters.lower() in (keyword.lower(), f"{keyword.lower()}s" if len(keyword) > _LONGEST_NOUN else "")
        if (is_same or (not is_joined and _is_slip(word.lower(), keyword.lower(), is_distinct))) and _takes(
            known, value
        ):
            return keyword
    return None


def _takes(keyword: Keyword, value: object) -> bool:
    try:
        keyword.check(value, "")
    except SchemaError:
        return False
    return True


def _is_slip(word: str, keyword: str, is_distinct: bool) -> bool:
    """Whether a typist who means `keyword` may write `word`, by one slip at most."""
    difference = len(word) - len(keyword)
    if word == keyword or abs(difference) > 1:
        return word == keyword
    start = next((n for n, (one, other) in enumerate(zip(word, keyword, strict=False)) if one != other), len(keyword))
    if difference == 1:  # one letter more: the one before it, again
        return word[start + 1 :] == keyword[start:] and start > 0 and word[start] == word[start - 1]
    if difference == -1:
        return is_distinct and word[start:] == keyword[start + 1 :]
    swapped = keyword[start + 1 : start + 2] + keyword[start] + keyword[start + 2 :]
    return word[start:] == swapped or (is_distinct and word[start + 1 :] == keyword[start + 1 :])
