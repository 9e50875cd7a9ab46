"""The options of samplers that become warpers (`top_k=`, `dry=`, ...): `warpers_of` makes the warpers, in the order of `STEPS`, and
`options_of` is the inverse, penalties included: the options that a sampler was made with, for its `repr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from outlines_cont.checks import check
from outlines_cont.sampling.params import SamplingParams
from outlines_cont.sampling.warpers.dry import DRY
from outlines_cont.sampling.warpers.mirostat import Mirostat
from outlines_cont.sampling.warpers.number_warpers import MinP, Temperature, TopA, TopK, TopP
from outlines_cont.sampling.warpers.typical_p import TypicalP
from outlines_cont.sampling.warpers.warper import Warper
from outlines_cont.sampling.warpers.xtc import XTC

# In the order of `STEPS`.
_STANDARD: dict[str, type[Warper]] = {
    "dry": DRY,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "typical_p": TypicalP,
    "top_a": TopA,
    "mirostat": Mirostat,
    "xtc": XTC,
}
# These are given by their number, the others as warpers.
_NUMBERED = (Temperature, TopK, TopP, MinP, TypicalP, TopA)
_NO_TEMPERATURE = Temperature(1)


def warpers_of(options: Mapping[str, Any]) -> tuple[Warper, ...]:
    """Return the warpers for options by name, in the order of `STEPS`; None adds none, a number out of its range raises `OptionError`."""
    made: list[Warper] = []
    for option, kind in _STANDARD.items():
        value = options.get(option)
        if value is not None:
            warper = kind(value) if kind in _NUMBERED else value
            check(option, value, type(warper) is kind, f"`samplers.{kind.__name__}(...)` or None")
            made.append(warper)
    return tuple(warper for warper in made if warper != _NO_TEMPERATURE)


def options_of(params: SamplingParams) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each option that changes something, in the order of the steps."""
    yield from params.penalty_options()
    values: dict[str, Any] = {
        warper.name: getattr(warper, fields(warper)[0].name) if type(warper) in _NUMBERED else warper  # type: ignore[arg-type]
        for warper in params.warpers
        if warper.is_standard
    }
    if warpers_of(values) == params.warpers:
        yield from values.items()
    else:
        yield "warpers", params.warpers
