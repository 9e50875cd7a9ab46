"""`StreamOptions`: the checked options of a stream: events, top log-probabilities (1,000 at most), retractions, partial values.
`check_streamed` refuses samplers whose text is known only at the end: beam search and best-of-n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from outlines_cont.checks import check, checked_bool, is_int
from outlines_cont.errors import OptionError
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.sampler import Sampler

_MAX_TOP = 1000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream.

    Attributes:
        events: yield events instead of texts.
        top: how many of the most probable tokens an event reports for each token.
        retract: yield text before it is final, and retractions.
        partial: report the value so far.
    """

    events: bool = False
    top: int = 0
    retract: bool = False
    partial: bool = False

    @classmethod
    def of(cls, events: bool, top: int, retract: bool, partial: bool = False) -> Self:
        """Return the options, checked.

        Raises:
            OptionError: a value is out of its range, or needs events.
        """
        check("top", top, is_int(top, 0, _MAX_TOP), f"a number of tokens from 0 to {_MAX_TOP}")
        for name, flag in (("events", events), ("retract", retract), ("partial", partial)):
            checked_bool(flag, name)
        name = "top" if top else "retract"
        if (top or retract) and not events:
            raise OptionError(f"expected `events=True` beside `{name}`, which a text cannot tell, got no events", name)
        return cls(events, top, retract, partial)


def check_streamed(sampler: Sampler | BeamSearch) -> None:
    """Raise `OptionError` for beam search and best-of-n, whose text is known only at the end."""
    if isinstance(sampler, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler whose text stands once it is written, to stream it: a search chooses at the end. "
            "Use `greedy()` or `multinomial()`, or call the generator without `stream`.",
            "sampler",
        )
