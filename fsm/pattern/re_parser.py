"""`re_parser`: CPython's private parser of regular expressions (`re._parser`), after a test that it works as expected. It parses one sample
pattern with nearly every construct; where a name is missing, or the syntax tree, its flags or a width differ (any version of Python may
change them), importing `fsm` raises `UnsupportedPython`.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from itertools import zip_longest
from typing import Any

from fsm.errors import UnsupportedPython

TESTED_VERSIONS = "3.11 to 3.13"

_NAMES = (
    *("LITERAL", "NOT_LITERAL", "ANY", "IN", "RANGE", "NEGATE", "CATEGORY", "FAILURE"),
    *("SUBPATTERN", "BRANCH", "MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "ATOMIC_GROUP", "MAXREPEAT"),
    *("ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "AT"),
    *("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING", "AT_BOUNDARY", "AT_NON_BOUNDARY"),
    *(f"CATEGORY_{kind}" for kind in ("DIGIT", "NOT_DIGIT", "SPACE", "NOT_SPACE", "WORD", "NOT_WORD")),
)
_SAMPLE = r"^\A(?i-s:a)(?:[^b-d\W]|.)*?(e){2,}(?=f)(?<!g)\1(?(1)h|i)(?>j)k?+[^l]\b\B\Z$"
_CLASS = [("NEGATE", None), ("RANGE", (98, 100)), ("CATEGORY", "CATEGORY_NOT_WORD")]
_EXPECTED: list[tuple[Any, ...]] = [
    ("AT", "AT_BEGINNING"),
    ("AT", "AT_BEGINNING_STRING"),
    ("SUBPATTERN", (None, 2, 16, [("LITERAL", 97)])),
    ("MIN_REPEAT", (0, "MAXREPEAT", [("BRANCH", (None, [[("IN", _CLASS)], [("ANY", None)]]))])),
    ("MAX_REPEAT", (2, "MAXREPEAT", [("SUBPATTERN", (1, 0, 0, [("LITERAL", 101)]))])),
    ("ASSERT", (1, [("LITERAL", 102)])),
    ("ASSERT_NOT", (-1, [("LITERAL", 103)])),
    ("GROUPREF", 1),
    ("GROUPREF_EXISTS", (1, [("LITERAL", 104)], [("LITERAL", 105)])),
    ("ATOMIC_GROUP", [("LITERAL", 106)]),
    ("POSSESSIVE_REPEAT", (0, 1, [("LITERAL", 107)])),
    ("NOT_LITERAL", 108),
    ("AT", "AT_BOUNDARY"),
    ("AT", "AT_NON_BOUNDARY"),
    ("AT", "AT_END_STRING"),
    ("AT", "AT_END"),
]


def re_parser() -> Any:
    """Return the module with which `re` reads patterns: `parse`, `SubPattern`, and the constants of what it returns.

    Raises:
        UnsupportedPython: this version of Python has no such module, or it returns other syntax trees than expected.

    Cost: 0.1 ms; it is called once, when `fsm` is imported.
    """
    try:
        parser = import_module("re._parser")
        missing = [name for name in ("parse", "SubPattern", *_NAMES) if not hasattr(parser, name)]
        fault = f"`{missing[0]}` is missing" if missing else _fault(parser)
    except Exception as error:  # any exception of a changed parser
        fault = f"{type(error).__name__}: {error}"
    if fault:
        version = ".".join(map(str, sys.version_info[:3]))
        raise UnsupportedPython(
            f"expected the parser of `re` as it is in Python {TESTED_VERSIONS}, received that of Python {version}, which was changed "
            f"({fault}): use one of those versions, or a newer release of outlines-cont."
        )
    return parser


def _fault(parser: Any) -> str:
    """The first difference in the syntax tree of the sample, or an empty text."""
    parsed = parser.parse(_SAMPLE, re.NOFLAG)
    for expected, item in zip_longest(_EXPECTED, _plain(parser, parsed)):
        if expected != item:
            return f"expected {expected!r} for a part of a pattern, received {item!r}"
    if int(parsed.state.flags) != int(re.UNICODE):
        return f"expected the flags {int(re.UNICODE)} of a pattern, received {parsed.state.flags!r}"
    least, most = parser.SubPattern(parsed.state, [*parsed.data[2:5]]).getwidth()
    return "" if least == 3 and most > 1 << 30 else f"expected a width of 3 or more, received {least} to {most}"


def _plain(parser: Any, value: Any) -> Any:
    """A syntax tree with names instead of constants; only for the sample, as it recurses."""
    if isinstance(value, parser.SubPattern):
        return [(str(operator), _plain(parser, argument)) for operator, argument in value.data]
    if isinstance(value, list | tuple):
        return type(value)(_plain(parser, item) for item in value)
    return str(value) if isinstance(value, int) and type(value) is not int else value
