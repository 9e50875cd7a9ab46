"""`SamplingParams`: what the next token of a row is chosen by, as a value, and the order in which its steps apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlines_cont.sampling.penalties import NO_PENALTIES, Penalties
from outlines_cont.sampling.warpers import MinP, Temperature, TopK, TopP, Warper

STEPS = (
    "mask",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)
"""Every step in the order in which it applies; `warpers=` puts others in the place of the last four. Then a token is drawn, or the
most probable one taken."""

_STANDARD = (Temperature, TopK, TopP, MinP)


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


def standard_warpers(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> tuple[Warper, ...]:
    """Return the warpers of the options that samplers have, in the order of `STEPS`.

    Raises:
        OptionError: an option is out of its range.
    """
    scale = Temperature(temperature)
    warpers: list[Warper] = [] if scale.is_neutral else [scale]
    if top_k is not None:
        warpers.append(TopK(top_k))
    if top_p is not None:
        warpers.append(TopP(top_p))
    if min_p is not None:
        warpers.append(MinP(min_p))
    return tuple(warpers)


def _options(warpers: tuple[Warper, ...]) -> dict[str, object] | None:
    """Return the options that `standard_warpers` makes these of; None where it cannot."""
    if not all(type(warper) in _STANDARD for warper in warpers):
        return None
    values: dict[str, object] = {}
    for warper in warpers:
        match warper:
            case Temperature(t=value) | TopK(k=value) | TopP(p=value) | MinP(p=value):
                values[warper.name] = value
    options = {"temperature": 1.0, "top_k": None, "top_p": None, "min_p": None, **values}
    return values if standard_warpers(**options) == warpers else None  # type: ignore[arg-type]
