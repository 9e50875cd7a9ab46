"""`TemplatePiece`: what a call of `gen`, `choice`, `json` or `grammar` in a template generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from outlines_cont.generation.options import Options, PieceOptions
from outlines_cont.generation.run import PieceMaker
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState


class ValueMaker(PieceMaker, Protocol):
    """The methods of a generator that a template uses."""

    def value_of(self, state: SequenceState, options: PieceOptions) -> Any:
        """Return what a call would return for the state that it has made."""


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A piece to be generated.

    Attributes:
        name: under which its value is captured; None for no name.
        generator: what writes it, with its sampler.
        given: the options of the call, as they stand in the template.
        options: the same, checked.
        rng: its own seed; None continues the random numbers of the row.
    """

    name: str | None
    generator: ValueMaker
    given: PieceOptions
    options: Options
    rng: Rng = None
