"""`StreamOptions`: the checked options of a stream: events, partial values, and, with events only, top log-probabilities (1,000 at most)
and retractions. `check_streamed` refuses samplers whose text is known only at the end: beam search and best-of-n.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    Raises:
        OptionError: a value is out of its range, or needs events.
    """

    events: bool = False
    top: int = 0
    retract: bool = False
    partial: bool = False

    def __post_init__(self) -> None:
        top, retract = self.top, self.retract
        check("top", top, is_int(top, 0, _MAX_TOP), f"a number of tokens from 0 to {_MAX_TOP}")
        for name in ("events", "retract", "partial"):
            checked_bool(getattr(self, name), name)
        if (top or retract) and not self.events:
            name = "top" if top else "retract"
            raise OptionError(
                f"expected `events=True` with `{name}`, which a stream of texts does not show, got no events", name
            )


def check_streamed(sampler: Sampler | BeamSearch) -> None:
    """Raise `OptionError` for beam search and best-of-n."""
    if isinstance(sampler, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler that draws token by token, to stream its text: a search chooses at the end. "
            "Use `greedy()` or `multinomial()`, or call the generator without `stream`.",
            "sampler",
        )
