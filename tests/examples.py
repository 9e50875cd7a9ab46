"""How many random cases a law is tried on: few in every run, ten times as many with `pytest --hypothesis-profile=thorough`, all seeds with
`-m slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

_FEW = 5
"""A law is tried at least so often, or as often as it says: the first example of hypothesis is the simplest, which asks little."""


def examples(count: int) -> int:
    """Return `count`: a third of it, but at least five, under the profile `ci`, and ten times as many under `thorough`."""
    profile = settings.get_current_profile_name()
    if profile == "ci":
        return max((count + 2) // 3, min(count, _FEW))
    return count * (10 if profile == "thorough" else 1)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases for `parametrize`, of which those behind the first `count` are marked `slow`; a tuple has a value for each name."""
    return [case if number < count else _slow(case) for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
