"""`SamplingParams`: the sampling parameters of a row as a value, and the order in which their steps apply (`STEPS`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from outlines_cont.checks import check
from outlines_cont.sampling.penalties import NO_PENALTIES, Penalties
from outlines_cont.sampling.warpers.dry import DRY
from outlines_cont.sampling.warpers.min_p import MinP
from outlines_cont.sampling.warpers.mirostat import Mirostat
from outlines_cont.sampling.warpers.temperature import Temperature
from outlines_cont.sampling.warpers.top_a import TopA
from outlines_cont.sampling.warpers.top_k import TopK
from outlines_cont.sampling.warpers.top_p import TopP
from outlines_cont.sampling.warpers.typical_p import TypicalP
from outlines_cont.sampling.warpers.warper import Warper
from outlines_cont.sampling.warpers.xtc import XTC

STEPS = (
    "mask",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_a",
    "mirostat",
    "xtc",
)
"""Every step in the order in which it applies; `warpers=` puts others in the place of those from `dry` on. Then a token is drawn, or
the most probable one taken."""

# In the order of `STEPS`, and of the options.
_STANDARD: tuple[type[Warper], ...] = (DRY, Temperature, TopK, TopP, MinP, TypicalP, TopA, Mirostat, XTC)
_NUMBERED = (Temperature, TopK, TopP, MinP, TypicalP, TopA)
_NO_TEMPERATURE = Temperature(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is chosen. Samplers make it; their checks are not repeated here."""

    is_greedy: bool  # take the most probable token; then `penalties` are all that counts
    penalties: Penalties = NO_PENALTIES  # what changes single logits
    warpers: tuple[Warper, ...] = ()  # what is done with the logits after that, in this order

    @property
    def is_standard(self) -> bool:
        """Whether no code of a user runs in it."""
        return all(type(warper) in _STANDARD for warper in self.warpers)

    @property
    def needs_counts(self) -> bool:
        """Whether anything depends on the tokens of the row."""
        return self.penalties.needs_counts or any(warper.needs_counts for warper in self.warpers)

    @property
    def has_mirostat(self) -> bool:
        """Whether `Mirostat` is among the warpers, so that the row keeps where it began."""
        return any(isinstance(warper, Mirostat) for warper in self.warpers)

    def options(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each option that changes something, in the order of the steps."""
        yield from self._penalties()
        values = _options(self.warpers)
        if values is None:
            yield "warpers", self.warpers
        else:
            yield from values.items()

    def steps(self) -> str:
        """Return the steps for people to read, such as `mask > temperature 0.7 > top_k 50 > draw`."""
        penalties = (
            f"{step} {value if step != 'logit_bias' else f'of {len(self.penalties.logit_bias)}'}"
            for step, value in self._penalties()
        )
        last = "take the largest" if self.is_greedy else "draw"
        return " > ".join(["mask", *penalties, *map(str, self.warpers), last])

    def _penalties(self) -> Iterator[tuple[str, object]]:
        penalties = self.penalties
        if penalties.logit_bias:
            yield "logit_bias", dict(penalties.logit_bias)
        if penalties.repetition != 1:
            yield "repetition_penalty", penalties.repetition
        if penalties.frequency != 0:
            yield "frequency_penalty", penalties.frequency
        if penalties.presence != 0:
            yield "presence_penalty", penalties.presence


@dataclass(frozen=True, slots=True, kw_only=True)
class WarperOptions:
    """The options of samplers that become warpers; the defaults change nothing.

    Attributes:
        temperature: the number of `Temperature`.
        top_k, top_p, min_p, typical_p, top_a: the numbers of the warpers of these names; None for none.
        dry, mirostat, xtc: the warpers themselves; None for none.
    """

    dry: DRY | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_a: float | None = None
    mirostat: Mirostat | None = None
    xtc: XTC | None = None

    def warpers(self) -> tuple[Warper, ...]:
        """Return the warpers in the order of `STEPS`.

        Raises:
            OptionError: an option is out of its range.
        """
        options = [(option.name, getattr(self, option.name)) for option in fields(self)]
        given = [
            _warper(kind, *option) for kind, option in zip(_STANDARD, options, strict=True) if option[1] is not None
        ]
        return tuple(warper for warper in given if warper != _NO_TEMPERATURE)


def _warper(kind: type[Warper], option: str, value: Any) -> Warper:
    """Return a standard warper that was given as an option: by its number, where it has one and no more."""
    if kind in _NUMBERED:
        return kind(value)
    check(option, value, type(value) is kind, f"`samplers.{kind.__name__}(...)` or None")
    warper: Warper = value
    return warper


def _options(warpers: tuple[Warper, ...]) -> dict[str, Any] | None:
    """Return the options that `WarperOptions` makes these of; None where it cannot."""
    if not all(type(warper) in _STANDARD for warper in warpers):
        return None
    values: dict[str, Any] = {
        warper.name: getattr(warper, fields(warper)[0].name) if type(warper) in _NUMBERED else warper  # type: ignore[arg-type]
        for warper in warpers
    }
    return values if WarperOptions(**values).warpers() == warpers else None
