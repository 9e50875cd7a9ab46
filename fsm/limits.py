"""`Limits`: the bounds of compiling a schema or a grammar (sizes, depths, counts, work), as a dataclass with defaults. Most raise
`BudgetExceeded` when they are passed. `max_nesting` bounds the language instead; beyond `max_work`, `max_alternatives` or `max_key_kinds`
more of a schema is left to checks, where that helps and it is not `strict`. Bounds of masks are those of `TokenFSM`.
`work_bound` bounds the work of a thread (`terms/work.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from fsm.errors import BudgetExceeded, shorten
from fsm.terms.work import HEAVY, WorkLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of compiling; most raise `BudgetExceeded` with their name when they are passed.

    Attributes:
        max_schema_characters: length of a schema that is given as text.
        max_grammar_characters: length of a grammar.
        max_templates: uses of the templates of a grammar with different arguments.
        max_expansion: symbols that Lark writes out for a grammar beyond those that it has: for the choices of its options, groups and
            counts (where these multiply, parts become rules of their own first), and for terminals inside others.
        max_left_recursion: rules that refer to one another before they read anything.
        max_depth: how deeply values may be nested before a reference must lead back to a subschema that was compiled already.
        max_nesting: how many arrays and objects of a text may be open at the same time in values of any type and in those that may
            contain their own kind; it does not bound other nesting. It is not an error: deeper texts do not belong to the language.
        max_subschemas: different places (and combinations of places) of a schema that are compiled.
        max_alternatives: combinations of the `anyOf` and `enum` keywords that apply to one value.
        max_properties: properties of one object.
        max_key_kinds: languages into which `patternProperties` and the like divide the keys of one object.
        max_enum_values: values of one `enum`.
        max_pattern_length: characters of one `pattern`.
        max_number_digits: digits of a bound or divisor without an exponent.
        max_different: texts of the items of one array without equal items (`uniqueItems`) that its automaton remembers; with more items
            that is checked, which is no error.
        max_work: steps of work that compiling a schema may take, 3 to 10 us each. Where keywords multiply their alternatives and it
            takes more, it is compiled again with more left to checks; `strict` refuses it immediately. 1,000 objects need about 80,000.

    Raises:
        ValueError: a bound is not a positive int.
    """

    max_schema_characters: int = 10_000_000
    max_grammar_characters: int = 100_000
    max_templates: int = 1_000
    max_expansion: int = 10_000
    max_left_recursion: int = 64
    max_depth: int = 100
    max_nesting: int = 64
    max_subschemas: int = 100_000
    max_alternatives: int = 10_000
    max_properties: int = 10_000
    max_key_kinds: int = 64
    max_enum_values: int = 100_000
    max_pattern_length: int = 10_000
    max_number_digits: int = 1_000
    max_different: int = 64
    max_work: int = 120_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{field.name}` is a positive int, received {value!r}. Leave it out for the default.")

    def check(self, name: str, reached: int, what: str, pointer: str | None) -> None:
        """Raise unless `reached` is within the bound `name`.

        Raises:
            BudgetExceeded: it is not; the message names what was counted, and its `pointer` (None: no schema).
        """
        bound: int = getattr(self, name)
        if reached > bound:
            place = "" if pointer is None else f" (at '#{pointer}')"
            raise BudgetExceeded(
                f"{what}: {reached:,} are more than the {bound:,} that `{name}` allows{place}. "
                f"Make it smaller, or give `limits=Limits({name}={reached})`.",
                name,
                bound,
            )


DEFAULT_LIMITS = Limits()


def check_limits(limits: object, error: Callable[[str], Exception]) -> None:
    """Raise `error` with a message, unless `limits` are `Limits`."""
    if not isinstance(limits, Limits):
        raise error(
            f"expected `fsm.Limits`, such as `Limits(max_work=500_000)`, as `limits`, received {shorten(limits)}. "
            "Leave it out for the default."
        )


def work_bound(name: str, most: int, doing: str, heavy: str = HEAVY, advice: str = "") -> WorkLimit:
    """Return a context in which `work.check` raises `BudgetExceeded` once this thread did more than `most`.

    Args:
        name: of the bound.
        most: units of work.
        doing: the task that is bounded, for the message.
        heavy: what takes much work there.
        advice: how to correct it; by default to simplify the expression, or raise the bound.
    """

    def exceeded() -> BudgetExceeded:
        correction = advice or f"Simplify the expression, or raise `{name}`"
        return BudgetExceeded(f"{doing} takes more than {most:,} steps of work: {heavy}. {correction}.", name, most)

    return WorkLimit(most, exceeded)
