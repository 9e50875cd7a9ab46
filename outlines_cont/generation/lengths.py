"""`warn_of_lengths`: warns, once per schema and model, about values of unbounded length, in a call without `max_tokens` (which its caller
checks). `named_lengths` lists the first five of them, with the keywords that would bound them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fsm.caller import stacklevel_of_user
from outlines_cont.errors import UnboundedWarning
from outlines_cont.interfaces import LanguageModel

_MAX_NAMED = 5

Unbounded = Sequence[tuple[str, str]]
"""Values that may be of any length: JSON pointers, and keywords that would bound them; see `fsm.Report`."""


def named_lengths(unbounded: Unbounded) -> str:
    """Return a list of the values with the keywords that would bound them, such as "'#/properties/name' (`maxLength`)"."""
    named = [f"{pointer!r} (`{keyword}`)" for pointer, keyword in unbounded[:_MAX_NAMED]]
    more = f" and {len(unbounded) - _MAX_NAMED} more" if len(unbounded) > _MAX_NAMED else ""
    return f"{', '.join(named)}{more}"


def warn_of_lengths(model: LanguageModel, source: str, unbounded: Unbounded, limit: int | None) -> None:
    """Warn about values of unbounded length, once per schema and model; `limit` is the most tokens of a generated span by default."""
    warned: set[str] = model.memo.setdefault("warned_lengths", set())
    if source in warned:
        return
    warned.add(source)
    warnings.warn(
        f"{named_lengths(unbounded)} may be of any length, and no `max_tokens` is given: a piece is cut after {limit} tokens. "
        "Pass `max_tokens=...`, or bound the values by the keywords in brackets, in pydantic by `Field(max_length=...)`.",
        UnboundedWarning,
        stacklevel=stacklevel_of_user(),
    )
