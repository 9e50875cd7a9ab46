"""`TemplatePiece`: the span that a call of `gen`, `choice`, `json` or `grammar` in a template generates: generator, options, seed, and the
name of its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from outlines_cont.generation.options import Options
from outlines_cont.generation.protocols import PieceMaker
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


class ValueMaker(PieceMaker, Protocol):
    """The methods of a generator that a template uses."""

    def value_of(self, state: SequenceState, max_tokens: int | None) -> Any:
        """Return what a call would return for the state that it has made."""


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A span to be generated.

    Attributes:
        name: under which its value is captured; None for no name.
        generator: what writes it, with its sampler.
        options: those of the call, checked.
        rng: its own seed; None continues the random numbers of the row.
    """

    name: str | None
    generator: ValueMaker
    options: Options
    rng: Rng = None
