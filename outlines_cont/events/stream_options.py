"""`StreamOptions`: the checked options of a stream: events, top log-probabilities, retraction, partial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from outlines_cont.checks import checked_bool, is_int
from outlines_cont.errors import OptionError
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.sampler import Sampler

_MAX_TOP = 1000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream.

    Attributes:
        events: as events, instead of texts.
        top: how many of the most probable tokens an event has for each token.
        retract: show text that may yet be taken back, and take it back.
        partial: show the value so far.
    """

    events: bool = False
    top: int = 0
    retract: bool = False
    partial: bool = False

    @classmethod
    def of(cls, events: bool, top: int, retract: bool, partial: bool = False) -> Self:
        """Check what was given.

        Raises:
            OptionError: a value is out of its range, or needs events.
        """
        if not is_int(top, 0, _MAX_TOP):
            raise OptionError(f"expected a number of tokens from 0 to {_MAX_TOP} as `top`, got {top!r}", "top")
        for name, flag in (("events", events), ("retract", retract), ("partial", partial)):
            checked_bool(flag, name)
        for name, value in (("top", top), ("retract", retract)):
            if value and not events:
                raise OptionError(
                    f"expected `events=True` beside `{name}`, which a text cannot tell, got no events", name
                )
        return cls(events, top, retract, partial)


def check_streamed(sampler: Sampler | BeamSearch) -> None:
    """Reject a search, whose text is only known at its end.

    Raises:
        OptionError: `sampler` is a `BeamSearch`.
    """
    if isinstance(sampler, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler whose text stands once it is written, to stream it: a search chooses at the end. "
            "Use `greedy()` or `multinomial()`, or call the generator without `stream`.",
            "sampler",
        )
