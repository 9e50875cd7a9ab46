"""Requests of a script as values, which it awaits and which a replay compares: `Fixed`, `ForkInto`, `Wait`, and `Gen`, which checks its
options. `Label`: a position in its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from outlines_cont.checks import check, check_draft, check_int, checked_bool
from outlines_cont.generation.options import check_beside_stop, check_one_constraint
from outlines_cont.policies.policy import Policy
from outlines_cont.programs.driver import Wait


@dataclass(frozen=True, slots=True)
class Label:
    """A position in the text of a fork.

    Attributes:
        position: how many tokens are before it.
        num_cuts: how often the text had been cut when the label was made.
    """

    position: int
    num_cuts: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Append a text; before that, remove everything after the label `following`."""

    text: str
    following: Label | None = None


@dataclass(frozen=True, slots=True)
class ForkInto:
    """Continue as `count` forks."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen:
    """Generate a span; the attributes are the arguments of `script.gen`. Invalid ones are an `OptionError`."""

    regex: str | None = None
    choice: tuple[str, ...] | None = None
    json: Any = None
    grammar: str | None = None
    substring_of: str | None = None
    substring_end: str = '"'
    stop_at: tuple[str, ...] = ()
    keep_stop: bool = False
    max_tokens: int | None = None
    policies: tuple[Policy[Any], ...] = ()
    temperature: float | None = None
    name: str | None = None
    force: bool = True
    require_stop: bool = False
    draft: Any = None

    def __post_init__(self) -> None:
        constraints = ("regex", "choice", "json", "grammar", "substring_of")
        check_one_constraint({name: getattr(self, name) for name in constraints})
        for option in ("regex", "grammar", "substring_of", "substring_end", "name"):
            value = getattr(self, option)
            is_omitted = value is None and option != "substring_end"
            check(option, value, is_omitted or isinstance(value, str), "a text")
        check_draft(self.draft)
        for option in ("keep_stop", "require_stop", "force"):
            checked_bool(getattr(self, option), option)
        check_beside_stop(self.stop_at, keep_stop=self.keep_stop, require_stop=self.require_stop)
        check_int("max_tokens", self.max_tokens, 1, is_optional=True)
        temperature = self.temperature
        is_real = isinstance(temperature, Real) and not isinstance(temperature, bool) and 0 <= temperature < 1e30
        check("temperature", temperature, temperature is None or is_real, "a number, 0 or more, or None")


Request = Fixed | ForkInto | Wait | Gen
