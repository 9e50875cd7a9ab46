"""`Law`: what the next token of a row is chosen by, as a value, and the order in which its steps apply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlines_cont.sampling.penalties import NO_PENALTIES, Penalties

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
"""Every step in the order in which it applies. Then a token is drawn, or the most probable one taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The law of one token. Samplers make it; their checks are not repeated here.

    Attributes:
        is_greedy: take the most probable token; then `penalties` are all that counts.
        penalties: what changes single logits.
        temperature: what the logits are divided by.
        top_k: how many tokens are kept; None keeps all.
        top_p: the share of the probability that is kept; None keeps all.
        min_p: the share of the largest probability that a token needs; None asks for none.
    """

    is_greedy: bool
    penalties: Penalties = NO_PENALTIES
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    @property
    def cuts(self) -> tuple[bool, bool, bool]:
        """Whether `top_k`, `top_p` and `min_p` can leave tokens out."""
        return self.top_k is not None, self.top_p is not None and self.top_p < 1, bool(self.min_p)

    def options(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each step that changes something, in order; the mask has no value, and is left out."""
        penalties = self.penalties
        values = {
            "logit_bias": dict(penalties.logit_bias) or None,
            "repetition_penalty": _unless(1, penalties.repetition),
            "frequency_penalty": _unless(0, penalties.frequency),
            "presence_penalty": _unless(0, penalties.presence),
            "temperature": _unless(1, self.temperature),
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
        }
        yield from ((step, values[step]) for step in STEPS if values.get(step) is not None)

    def steps(self) -> str:
        """Return the steps for people to read, such as `mask > temperature 0.7 > top_k 50 > draw`."""
        named = (
            f"{step} {value if step != 'logit_bias' else f'of {len(self.penalties.logit_bias)}'}"
            for step, value in self.options()
        )
        return " > ".join(["mask", *named, "take the largest" if self.is_greedy else "draw"])


def _unless(neutral: float, value: float) -> float | None:
    return None if value == neutral else value
