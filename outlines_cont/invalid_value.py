"""`said_of`: an error that pydantic found in a value from outside, in the words of this package: "expected a number as `temperature`,
got 'hot'". Kinds of errors without words here are told as pydantic tells them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from outlines_cont.errors import shortened

_EXPECTED = {
    "int": "an int",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "finite_number": "a finite number",
    "none_required": "null",
    "literal_error": "{expected}",
    "union_tag_not_found": "an object with a `type`",
    "greater_than_equal": "{ge:g} or more",
    "less_than_equal": "{le:g} or less",
    "greater_than": "more than {gt:g}",
    "less_than": "less than {lt:g}",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
    "string_too_short": "{min_length} characters or more",
    "string_too_long": "{max_length} characters or fewer",
}
"""What a kind of error expects; `int` stands for `int_type`, `int_parsing` and so on."""


def said_of(error: Any, place: Sequence[str | int]) -> str:
    """Return what is wrong, with the place of the value, such as `["messages", 0, "role"]`, once.

    Args:
        error: an entry of `ValidationError.errors()`.
        place: keys and indices, from the outermost; empty for the whole.
    """
    kind, facts, named = error["type"], error.get("ctx", {}), "/".join(map(str, place))
    told = error["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"expected `{named}`, got none"
    if kind == "extra_forbidden":
        return f"unknown field `{named}`"
    if kind == "json_invalid":
        return f"expected JSON, got what cannot be read as such: {facts['error']}"
    if kind == "union_tag_invalid":
        return f"expected {facts['expected_tags']} as `{named}/type`, got {_shown(facts['tag'])}"
    expected = _EXPECTED.get(kind) or _EXPECTED.get(kind.split("_")[0])
    if expected is not None:
        at = f" as `{named}`" if named else ""
        return f"expected {expected.format(**facts)}{at}, got {_shown(error['input'])}"
    return told if not named or f"`{named}`" in told else f"{named}: {told}"


def _shown(value: Any) -> str:
    """Return a value of JSON for a message; of lists and objects only what they are."""
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return shortened(repr(value) if isinstance(value, str) else json.dumps(value, default=repr), 100)
