"""Requests of a script as values, `Fixed`, `Gen`, `ForkInto` and `Wait`, which it awaits and which can be replayed, and `Label`, a position
in its text. `Gen` checks its arguments and makes its generator, once for equal ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from fsm import substring
from outlines_cont import generate
from outlines_cont.checks import check, check_draft, check_int, checked_bool
from outlines_cont.control.fork_driver import ForkPiece, Wait
from outlines_cont.drafts.opening import open_draft
from outlines_cont.generate import Generator
from outlines_cont.generation.options import Options, check_beside_stop, check_one_constraint
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.stop import StopAt

STOP_REASON = "stop_at"
"""How a piece ends that has come to its stop text."""


@dataclass(frozen=True, slots=True)
class Label:
    """A position in the text of a fork.

    Attributes:
        position: how many tokens are before it.
        num_cuts: how often the text had been cut when the label was taken.
    """

    position: int
    num_cuts: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Append a text; `following` cuts everything after a label before that."""

    text: str
    following: Label | None = None


@dataclass(frozen=True, slots=True)
class ForkInto:
    """Continue as `count` forks."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gen:
    """Generate a span; the attributes are the arguments of `script.gen`."""

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

    def check(self) -> None:
        """Check the arguments.

        Raises:
            OptionError: more than one constraint, or a value out of its range.
        """
        constraints = ("regex", "choice", "json", "grammar", "substring_of")
        check_one_constraint({name: getattr(self, name) for name in constraints})
        for option in ("regex", "grammar", "substring_of", "substring_end", "name"):
            value = getattr(self, option)
            if not isinstance(value, str) and (value is not None or option == "substring_end"):
                check(option, value, False, "a text")
        check_draft(self.draft)
        for option in ("keep_stop", "require_stop", "force"):
            checked_bool(getattr(self, option), option)
        check_beside_stop(self.stop_at, keep_stop=self.keep_stop, require_stop=self.require_stop)
        tokens, temperature = self.max_tokens, self.temperature
        check_int("max_tokens", tokens, 1, is_optional=True)
        is_real = isinstance(temperature, Real) and not isinstance(temperature, bool) and 0 <= temperature < 1e30
        check("temperature", temperature, temperature is None or is_real, "a number, 0 or more, or None")

    def generator(self, model: LanguageModel) -> Generator:
        """Return the generator of the span; equal ones are made once, as in a loop."""
        made = partial(generate.text)
        if self.regex is not None:
            made = partial(generate.regex, pattern=self.regex, force=self.force)
        elif self.choice is not None:
            made = partial(generate.choice, options=self.choice, force=self.force)
        elif self.json is not None:
            made = partial(generate.json, schema=self.json, force=self.force)
        elif self.grammar is not None:
            made = partial(generate.cfg, grammar=self.grammar, force=self.force)
        elif self.substring_of is not None:
            made = partial(_substring, text=self.substring_of, end=self.substring_end, force=self.force)
        return generate.made_once(model, made)

    def piece(self, generator: Generator, others: tuple[Policy[Any], ...] = ()) -> ForkPiece:
        """Return the span for the engine; `others` are more policies of it."""
        policies = generator.policies(Options(policies=(*self.policies, *others)))
        if self.stop_at:
            policies.append(_Stop(self.stop_at, generator.model.tokenizer, keep=self.keep_stop))
        return ForkPiece(policies, self.max_tokens, self.temperature, open_draft(self.draft, generator.model))


def _substring(model: LanguageModel, *, text: str, end: str, force: bool) -> Generator:
    return generate.fsm(model, substring(text, end=end), force=force)


class _Stop(StopAt):
    """A stop text whose end has a finish reason of its own, unlike the model's end of text."""

    @property
    def finish_reason(self) -> str:
        """The reason that `require_stop` checks."""
        return STOP_REASON


Request = Fixed | ForkInto | Wait | Gen
