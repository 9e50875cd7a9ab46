"""`SamplingParams`: what the next token of a row is chosen by, as a value, and the order in which its steps apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlines_cont.errors import OptionError
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

_STANDARD = (DRY, Temperature, TopK, TopP, MinP, TypicalP, TopA, Mirostat, XTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is chosen. Samplers make it; their checks are not repeated here.

    Attributes:
        is_greedy: take the most probable token; then `penalties` are all that counts.
        penalties: what changes single logits.
        warpers: what is done with the logits after that, in this order.
    """

    is_greedy: bool
    penalties: Penalties = NO_PENALTIES
    warpers: tuple[Warper, ...] = ()

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
    if not all(type(warper) in _STANDARD for warper in warpers):
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
