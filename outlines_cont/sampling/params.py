"""`SamplingParams`: the sampling parameters of one row as an immutable value: greedy or not, penalties, and warpers in their order.
`STEPS`: the names of all standard steps in the order in which they apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlines_cont.sampling.penalties import NO_PENALTIES, Penalties
from outlines_cont.sampling.warpers.warper import Warper

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters that one token is chosen by, unchecked: samplers make it, and check their options."""

    is_greedy: bool  # take the most probable token; then `penalties` are all that counts
    penalties: Penalties = NO_PENALTIES  # what changes single logits
    warpers: tuple[Warper, ...] = ()  # what is done with the logits after that, in this order

    @property
    def is_standard(self) -> bool:
        """Whether no code of a user runs in it."""
        return all(warper.is_standard for warper in self.warpers)

    @property
    def needs_counts(self) -> bool:
        """Whether anything depends on the tokens of the row."""
        return self.penalties.needs_counts or any(warper.needs_counts for warper in self.warpers)

    @property
    def has_mirostat(self) -> bool:
        """Whether `Mirostat` is among the warpers, so that the row keeps where it began."""
        return any(warper.follows_surprise for warper in self.warpers)

    def steps(self) -> str:
        """Return the steps for people to read, such as `mask > temperature 0.7 > top_k 50 > draw`."""
        penalties = (
            f"{step} {value if step != 'logit_bias' else f'of {len(self.penalties.logit_bias)}'}"
            for step, value in self.penalty_options()
        )
        last = "take the largest" if self.is_greedy else "draw"
        return " > ".join(["mask", *penalties, *map(str, self.warpers), last])

    def penalty_options(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each penalty that changes something, in the order of the steps."""
        penalties = self.penalties
        if penalties.logit_bias:
            yield "logit_bias", dict(penalties.logit_bias)
        if penalties.repetition != 1:
            yield "repetition_penalty", penalties.repetition
        if penalties.frequency != 0:
            yield "frequency_penalty", penalties.frequency
        if penalties.presence != 0:
            yield "presence_penalty", penalties.presence
