"""`load_phrases`: reads phrases with factors for `ban` from a JSON file: `[["phrase", factor], ...]`, as the authors of antislop publish
them, a list of phrases (factor 0), or an object. Of duplicates in a list the smallest factor counts.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from outlines_cont.errors import OptionError


def load_phrases(path: str | PathLike[str]) -> dict[str, float]:
    """Return the phrases of a file with their factors, for `policies.ban`.

    Args:
        path: a JSON file: a list of `["phrase", factor]`, a list of phrases, which have the factor 0, or an object with the factors
            of phrases.

    Raises:
        OptionError: it contains something else.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError(f"expected phrases as JSON in {str(path)!r}, got something else: {error}", "path") from error
    items = list(data.items()) if isinstance(data, dict) else data
    if not isinstance(items, list):
        raise OptionError(
            f'expected a list such as `[["phrase", 0.5]]` in {str(path)!r}, got {type(items).__name__}', "path"
        )
    phrases: dict[str, float] = {}
    for number, item in enumerate(items):
        match [item, 0.0] if isinstance(item, str) else item:
            case [str(phrase), int() | float() as factor] if not isinstance(factor, bool):
                phrases[phrase] = min(factor, phrases.get(phrase, factor))
            case _:
                raise OptionError(
                    f'expected `["phrase", factor]` as item {number} of {str(path)!r}, got {item!r}. A factor is a number from 0 to 1.',
                    "path",
                )
    return phrases
