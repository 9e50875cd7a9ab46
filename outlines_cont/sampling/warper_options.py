"""`WarperOptions`: the options of samplers that become warpers (`top_k=`, `dry=`, ...), in their standard order. `options_of` is the
reverse: the options that a sampler was made with, for its `repr`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from outlines_cont.checks import check
from outlines_cont.sampling.params import SamplingParams
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
        pairs = zip(_STANDARD, options, strict=True)
        given = [_warper(kind, *option) for kind, option in pairs if option[1] is not None]
        return tuple(warper for warper in given if warper != _NO_TEMPERATURE)


# In the order of `STEPS`, and of the options.
_STANDARD: tuple[type[Warper], ...] = (DRY, Temperature, TopK, TopP, MinP, TypicalP, TopA, Mirostat, XTC)
_NUMBERED = (Temperature, TopK, TopP, MinP, TypicalP, TopA)
_NO_TEMPERATURE = Temperature(1)


def _warper(kind: type[Warper], option: str, value: Any) -> Warper:
    """Return a standard warper that was given as an option: by its number, where it has one and no more."""
    if kind in _NUMBERED:
        return kind(value)
    check(option, value, type(value) is kind, f"`samplers.{kind.__name__}(...)` or None")
    warper: Warper = value
    return warper


def _options(warpers: tuple[Warper, ...]) -> dict[str, Any] | None:
    """Return the options that `WarperOptions` makes these of; None where it cannot."""
    if not all(warper.is_standard for warper in warpers):
        return None
    values: dict[str, Any] = {
        warper.name: getattr(warper, fields(warper)[0].name) if type(warper) in _NUMBERED else warper  # type: ignore[arg-type]
        for warper in warpers
    }
    return values if WarperOptions(**values).warpers() == warpers else None


def options_of(params: SamplingParams) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each option that changes something, in the order of the steps."""
    yield from params.penalty_options()
    values = _options(params.warpers)
    if values is None:
        yield "warpers", params.warpers
    else:
        yield from values.items()
