"""`TemplatePiece`: the span that a call of `gen`, `choice`, `json` or `grammar` in a template generates: generator, options, seed, and the
name of its value.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.sampling.random_stream import Rng


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
    generator: PieceMaker
    options: Options
    rng: Rng = None
