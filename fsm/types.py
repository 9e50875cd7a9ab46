"""Predefined languages, such as `fsm.types.date` and `fsm.types.email`, as expressions that are built when they are first used. Most are
regular expressions, or formats of JSON Schema. Some leave out spellings that a standard allows (`integer` has no `-0`, `email` no quoted
local part), and only strings and list items have more than ASCII. All can be combined like other expressions, but `json_value` is
recursive, so `&` and `~` refuse it. For numbers with check digits `docs/constrain.md` has a recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fsm.errors import did_you_mean
from fsm.expression import Expression
from fsm.languages import choice
from fsm.pattern.python_pattern import regex
from fsm.recipe import remembered
from fsm.schema.keywords.formats import format_node
from fsm.terms import node as nodes
from fsm.terms.rule import Rules

MAX_LIST_ITEMS = 99
MAX_INDENT = 40

integer: Expression
"""A whole number: `0`, or an optional `-` and digits that do not begin with 0."""
number: Expression
"""A number as JSON has it: an integer part, an optional fraction, an optional exponent (RFC 8259, section 6)."""
boolean: Expression
"""`true` or `false`."""
date: Expression
"""A day that exists, from 0001-01-01 to 9999-12-31, as `YYYY-MM-DD` (RFC 3339 full-date)."""
time: Expression
"""`HH:MM:SS`, an optional fraction of 1 to 6 digits, an optional offset (`Z` or `+HH:MM`); no leap second."""
datetime: Expression
"""A `date`, a `T` and a `time`."""
email: Expression
"""An address as people have them: a dot-atom of at most 64 characters, `@`, a host name of two labels or more, at most 253.

RFC 5321 Mailbox without quoted local parts, address literals and single labels; the last label is not a number.
"""
uri: Expression
"""A URI with a scheme (RFC 3986, `URI`)."""
uuid: Expression
"""8-4-4-4-12 hexadecimal digits (RFC 9562), in either case, of any version."""
ipv4: Expression
"""Four decimal octets without leading zeros."""
ipv6: Expression
"""An address in the text form of RFC 4291, section 2.2, `::` and an embedded IPv4 address included; without a zone."""
semver: Expression
"""A version as Semantic Versioning 2.0.0 has it, without a leading `v`."""
hex_color: Expression
"""`#` and 3, 4, 6 or 8 hexadecimal digits (CSS Color 4, section 5.2)."""
json_string: Expression
"""A JSON string, quotes included, with every escape that RFC 8259 allows."""
json_value: Expression
"""Any JSON value. Between tokens is nothing, one space, or a line end and at most 40 spaces: `json.dumps` with any usual indent."""
markdown_list: Expression
"""One or more lines of text with one kind of bullet (`-`, `*` or `+`), or numbered `1.`, `2.` and so on to 99 at most.

Flat; the text of an item neither begins nor ends with a space. No line end after the last item.
"""

_DIGITS_60 = "[0-5][0-9]"
_HOURS = "(?:[01][0-9]|2[0-3])"
_HEX = "[0-9A-Fa-f]"


def _format(name: str) -> Expression:
    return Expression(format_node(name))


def _time() -> Expression:
    offset = f"(?:Z|[+-]{_HOURS}:{_DIGITS_60})"
    return regex(rf"{_HOURS}:{_DIGITS_60}:{_DIGITS_60}(?:\.[0-9]{{1,6}})?{offset}?")


def _email() -> Expression:
    atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    local = regex(rf"{atom}(?:\.{atom})*") & regex(".{1,64}")
    last = regex(label) & ~regex("[0-9]+")
    domain = (regex(rf"(?:{label}\.)+") + last) & regex(".{3,253}")
    return local + "@" + domain


def _semver() -> Expression:
    count = "(?:0|[1-9][0-9]*)"
    word = "[0-9A-Za-z-]+"
    mixed = "[0-9]*[A-Za-z-][0-9A-Za-z-]*"
    before = rf"(?:{count}|{mixed})(?:\.(?:{count}|{mixed}))*"
    return regex(rf"{count}\.{count}\.{count}(?:-{before})?(?:\+{word}(?:\.{word})*)?")


def _json_value() -> Expression:
    rules = Rules()
    value = rules.rule("json_value")
    inner = Expression(value.term, source="types.json_value")
    space = regex(rf" ?|\n {{0,{MAX_INDENT}}}")
    comma, string = space + "," + space, _BUILDERS["json_string"]()
    member = string + space + ":" + space + inner
    items, members = inner + (comma + inner).repeat(), member + (comma + member).repeat()
    array = "[" + space + (items + space).repeat(0, 1) + "]"
    members = "{" + space + (members + space).repeat(0, 1) + "}"
    value.define((array | members | string | _BUILDERS["number"]() | choice(["true", "false", "null"])).node)
    return Expression(rules.entrance(value), source="types.json_value")


def _markdown_list() -> Expression:
    edge = r"[^\s\x00-\x1f\x7f-\x9f]"
    item = regex(rf" {edge}(?:[^\x00-\x1f\x7f-\x9f\u2028\u2029]*{edge})?")
    bullets = (marker + item + ("\n" + marker + item).repeat() for marker in "-*+")
    numbered = nodes.EPSILON
    for count in range(MAX_LIST_ITEMS, 0, -1):
        start = nodes.literal(b"%s%d." % (b"\n" if count > 1 else b"", count))
        numbered = nodes.sequence(
            (start, item.node, nodes.optional(numbered) if numbered is not nodes.EPSILON else numbered)
        )
    return Expression(nodes.alternation((*(bullet.node for bullet in bullets), numbered)), source="types.markdown_list")


_BUILDERS: dict[str, Callable[[], Expression]] = {
    "integer": lambda: regex("0|-?[1-9][0-9]*"),
    "number": lambda: regex(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    "boolean": lambda: choice(["true", "false"]),
    "date": lambda: _format("date"),
    "time": _time,
    "datetime": lambda: _format("date") + "T" + _time(),
    "email": _email,
    "uri": lambda: _format("uri"),
    "uuid": lambda: _format("uuid"),
    "ipv4": lambda: _format("ipv4"),
    "ipv6": lambda: _format("ipv6"),
    "semver": _semver,
    "hex_color": lambda: regex(f"#(?:{_HEX}{{3,4}}|{_HEX}{{6}}|{_HEX}{{8}})"),
    "json_string": lambda: regex(rf'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u{_HEX}{{4}}))*"'),
    "json_value": _json_value,
    "markdown_list": _markdown_list,
}

__all__ = sorted(_BUILDERS)


def __getattr__(name: str) -> Expression:
    if name not in _BUILDERS:
        raise AttributeError(
            f"module 'fsm.types' has no language {name!r}; it has {', '.join(_BUILDERS)}.{did_you_mean(name, _BUILDERS)}"
        )
    expression = globals()[name] = _built(name)
    return expression


@remembered
def _built(name: str) -> Expression:
    return replace(_BUILDERS[name](), source=f"types.{name}")


def __dir__() -> list[str]:
    return list(__all__)
