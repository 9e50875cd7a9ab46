"""Requests of a script as values: `Fixed`, `Gen`, `ForkInto` and `Wait`, which it awaits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fsm import substring
from outlines_cont import generate
from outlines_cont.checks import check, check_int, checked_bool
from outlines_cont.control.fork_driver import ForkPiece, Wait
from outlines_cont.drafts.opening import check_draft, open_draft
from outlines_cont.errors import OptionError
from outlines_cont.generate import Generator
from outlines_cont.generation.options import Options, check_beside_stop
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies import StopAt
from outlines_cont.policies.policy import Policy

STOP_REASON = "stop_at"
"""How a piece ends that has come to its stop text."""

_NUM_GENERATORS = 64
_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the text of a fork.

    Attributes:
        position: how many tokens stand before it.
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
    """Generate a piece; the attributes are the arguments of `script.gen`."""

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
        named = [n for n in ("regex", "choice", "json", "grammar", "substring_of") if getattr(self, n) is not None]
        if len(named) > 1:
            raise OptionError(f"expected at most one constraint, got {' and '.join(map(repr, named))}", named[1])
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
        """Return the generator of the piece; equal ones are made once, as in a loop."""
        if self.json is not None:  # a type, or a dict: nothing to look it up by
            return generate.json(model, self.json, force=self.force)
        known: OrderedDict[object, Generator] = model.memo.setdefault("control", OrderedDict())
        key = (self.regex, self.choice, self.grammar, self.substring_of, self.substring_end, self.force)
        # Many programs that begin at once would all make the same.
        with _making:
            generator = known.pop(key, None) or self._make_generator(model)
            known[key] = generator
            if len(known) > _NUM_GENERATORS:
                known.popitem(last=False)
        return generator

    def _make_generator(self, model: LanguageModel) -> Generator:
        if self.regex is not None:
            return generate.regex(model, self.regex, force=self.force)
        if self.choice is not None:
            return generate.choice(model, self.choice, force=self.force)
        if self.grammar is not None:
            return generate.cfg(model, self.grammar, force=self.force)
        if self.substring_of is not None:
            return generate.fsm(model, substring(self.substring_of, end=self.substring_end), force=self.force)
        return generate.text(model)

    def piece(self, generator: Generator, others: tuple[Policy[Any], ...] = ()) -> ForkPiece:
        """Return the piece as the loop takes it; `others` steer it, too."""
        policies = generator.policies(Options(policies=(*self.policies, *others)))
        if self.stop_at:
            policies.append(_Stop(self.stop_at, generator.model.tokenizer, keep=self.keep_stop))
        return ForkPiece(policies, self.max_tokens, self.temperature, open_draft(self.draft, generator.model))


class _Stop(StopAt):
    """Tells its own end from the model's end of text."""

    @property
    def finish_reason(self) -> str:
        """The reason that `require_stop` checks."""
        return STOP_REASON


Request = Fixed | ForkInto | Wait | Gen
