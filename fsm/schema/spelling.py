"""Sentences for the report on valid JSON texts that are not in the language, chosen by the types and keywords of a value. Of the texts with
the same value (white space, escapes, numbers) the language usually has one or few; `docs/json_text.md` has examples.
"""

from __future__ import annotations

from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.place import Conjunction, is_number, values_of
from fsm.schema.keywords.value import values_at
from fsm.schema.scalars.number import MAX_EXACT_DIGITS
from fsm.schema.scalars.number_range import MAX_DIGITS

ONE_SPACE = "white space: at most one space, after `:` and `,`"
NO_SPACE = "white space: none"
SPACED = "white space: one space after each `:` and `,`, as `json.dumps` writes it"
STRINGS = "strings: as `json.dumps(value, ensure_ascii=False)` writes them, one spelling each"
ORDERED = "objects: members in the order of the schema, those that it does not name last"
ONCE = "objects: no key is repeated"
INTEGERS = f"whole numbers: plain digits, at most {MAX_DIGITS} or as many as a bound has; no `1.0`, `1e3`, `-0`"
NUMBERS = (
    f"numbers: at most {MAX_DIGITS} digits before the point and {MAX_DIGITS} after it, "
    "exponents as in `1e5` or `1.5e-7`; no `1E5`, `-0`"
)
BOUNDED = (
    f"numbers with bounds: at most {MAX_DIGITS} digits after the point; exponents below -4 or above 15, as in `1.5e-7`, after one digit; "
    "no `1E-7`, `-0`"
)
LISTED = (
    "listed numbers: as the schema writes them, or whole ones with `.0`; more zeros up to the decimals of `multipleOf`"
)
DECIMAL = (
    f"decimals: strings as pydantic writes them: at most {MAX_DIGITS} digits before the point and {MAX_DIGITS} after it, or an exponent "
    "where `str` has one, as in `1.5E+3` or `1E-7`"
)
URL = "URLs: a scheme in small letters, a host in ASCII, at most 1,000 characters of path and query, 200 of fragment"


def nested(most: int) -> str:
    """The bound on the nesting of values of any type, and of recursive schemas."""
    return f"values of any type, and those of recursive schemas: at most {most} arrays and objects inside one another"


def of_numbers(decimals: int | None, *, is_bounded: bool) -> str:
    """The spelling of numbers with at most so many decimals (0: whole numbers; None: no such bound)."""
    if decimals is None:
        return BOUNDED if is_bounded else NUMBERS
    if not decimals:
        return INTEGERS
    plural = "s" if decimals > 1 else ""
    room = MAX_EXACT_DIGITS - decimals
    return (
        f"numbers with `multipleOf`, or of which some are denied: at most {decimals} decimal{plural}, and {room} digits before a point; "
        "no exponent, no `-0.0`"
    )


def of_listed(places: Conjunction, types: frozenset[str]) -> list[str]:
    """The spelling of listed scalars."""
    values = [value for place in places for value in values_at(place) or ()]
    strings = [STRINGS] if "string" in types and any(isinstance(value, str) for value in values) else []
    if not any(map(is_number, values)) or types.isdisjoint(("integer", "number")):
        return strings
    return [*strings, LISTED if "number" in types else INTEGERS]


def of_strings(places: Conjunction) -> list[str]:
    """The spelling of strings."""
    spellings = ((keyword.name, keyword.spelling) for keyword in KEYWORDS.with_language if keyword.spelling is not None)
    found = (spelling(value) for name, spelling in spellings for _, value in values_of(places, name))
    return [STRINGS, *filter(None, found)]
