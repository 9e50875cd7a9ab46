"""`WarperOptions`: the options of samplers that become warpers, and back: `options_of`, what a sampler was made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlines_cont.errors import OptionError
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

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_a: float | None = None
    dry: DRY | None = None
    mirostat: Mirostat | None = None
    xtc: XTC | None = None

    def warpers(self) -> tuple[Warper, ...]:
        """Return the warpers in the order of `STEPS`.

        Raises:
            OptionError: an option is out of its range.
        """
        scale = Temperature(self.temperature)
        return tuple(
            warper
            for warper in (
                _given(self.dry, DRY),
                None if scale.is_neutral else scale,
                None if self.top_k is None else TopK(self.top_k),
                None if self.top_p is None else TopP(self.top_p),
                None if self.min_p is None else MinP(self.min_p),
                None if self.typical_p is None else TypicalP(self.typical_p),
                None if self.top_a is None else TopA(self.top_a),
                _given(self.mirostat, Mirostat),
                _given(self.xtc, XTC),
            )
            if warper is not None
        )


def _given(value: Warper | None, kind: type[Warper]) -> Warper | None:
    """Return a warper that was given as an option."""
    if value is not None and type(value) is not kind:
        option = kind.__name__.lower()
        raise OptionError(f"expected `samplers.{kind.__name__}(...)` or None as `{option}`, got {value!r}", option)
    return value


def _options(warpers: tuple[Warper, ...]) -> dict[str, Any] | None:
    """Return the options that `WarperOptions` makes these of; None where it cannot."""
    if not all(warper.is_standard for warper in warpers):
        return None
    values: dict[str, Any] = {}
    for warper in warpers:
        match warper:
            case (
                Temperature(t=value) | TopK(k=value) | TopP(p=value) | MinP(p=value) | TypicalP(p=value) | TopA(a=value)
            ):
                values[warper.name] = value
            case _:
                values[warper.name] = warper
    return values if WarperOptions(**values).warpers() == warpers else None


def options_of(params: SamplingParams) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each option that changes something, in the order of the steps."""
    yield from params.penalty_options()
    values = _options(params.warpers)
    if values is None:
        yield "warpers", params.warpers
    else:
        yield from values.items()
