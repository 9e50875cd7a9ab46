"""How many random cases a law is tried on: few in every run, ten times as many with `pytest --hypothesis-profile=thorough`, all seeds with
`-m slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int) -> int:
    """Return `count`, or ten times as many under the profile `thorough`."""
    return count * (10 if settings.get_current_profile_name() == "thorough" else 1)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return cases for `parametrize`, of which those behind the first `count` are marked `slow`."""
    return [case if number < count else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)]
