"""Every class of errors: the message is what it shows, its facts are attributes, and both survive a copy, a pickle and a new place."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from outlines_cont import errors
from outlines_cont.errors import OutlinesContError, located

_CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OutlinesContError)]


def _made(kind: type[OutlinesContError]) -> tuple[OutlinesContError, dict[str, Any]]:
    """An error of a class, and the facts that it was given."""
    parts = list(inspect.signature(kind.__init__).parameters) if inspect.isfunction(kind.__init__) else []
    facts: dict[str, Any] = {name: 7 + at for at, name in enumerate(parts[2:])}
    make: Any = kind
    return make("expected this, got that", *facts.values()), facts


@pytest.mark.parametrize("kind", _CLASSES)
def test_an_error_shows_its_message_and_keeps_its_facts(kind: type[OutlinesContError]) -> None:
    error, facts = _made(kind)
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 (its own bytes)
        assert kind is type(same)
        assert (str(same), same.args) == ("expected this, got that", ("expected this, got that",))
        assert facts == vars(same)
        assert (same.results, same.errors) == (None, None)
    assert kind is OutlinesContError or len(kind.__mro__) > 4, "it is also one of the errors of Python"
    for sample, where in ((None, "batch 2"), (1, "batch 2, sample 1")):
        there = located(error, 2, sample)
        assert (kind, facts) == (type(there), vars(there))
        assert f"{where}: expected this, got that" == str(there)
        assert str(error) == "expected this, got that"


def test_an_error_of_somebody_else_gets_one_note_for_each_place() -> None:
    error = KeyError("a")
    assert located(error, 0) is located(error, 0) is located(error, 0, 1) is error
    assert error.__notes__ == ["This was batch 0 of the call.", "This was batch 0, sample 1 of the call."]
