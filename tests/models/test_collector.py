"""What Python's collector of reference cycles does not visit once a model is open: what was there before, and nothing of the model."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlines_cont.models import collector

ROOT = Path(__file__).parents[2]
OPENED_TWICE = """
import atexit, gc, json, weakref
atexit.register(lambda: print(gc.get_freeze_count() - before))  # called last: extension modules look for leaks after it
from outlines_cont import generate, models

before = gc.get_freeze_count()
model = models.tiny(freeze=True)
frozen, visited = gc.get_freeze_count() - before, len(gc.get_objects())
generate.regex(model, "[0-9]{2}")("a")
networks = [weakref.ref(model.hugging_face)]
other = models.tiny()
networks.append(weakref.ref(other.hugging_face))
again = gc.get_freeze_count() - before
del model, other
gc.collect()
print(json.dumps([frozen, visited, again, [network() is None for network in networks]]))

from outlines_cont import continuous
from outlines_cont.templates import Template
last = models.tiny()
texts = generate.regex(last, "[a-z]{30}").stream("hello")
events = iter(continuous(generate.text(last)).stream("hello", max_tokens=20))
parts = iter(Template("the {{ gen(max_tokens=20) }}").stream(last))
print(json.dumps([bool(next(texts)), bool(next(events)), bool(next(parts))]))
"""


@pytest.fixture(scope="module")
def ended() -> subprocess.CompletedProcess[str]:
    """A program that opens models, and ends with streams half read."""
    return subprocess.run([sys.executable, "-c", OPENED_TWICE], capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_program_may_end_with_streams_half_read(ended: subprocess.CompletedProcess[str]) -> None:
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout.splitlines()[1]) == [True, True, True]


def test_the_first_model_freezes_what_was_there_and_no_model(ended: subprocess.CompletedProcess[str]) -> None:
    found, _, at_exit = ended.stdout.splitlines()
    frozen, visited, again, are_freed = json.loads(found)
    assert frozen > 10 * visited  # the modules of torch and transformers
    assert again <= frozen  # the second model freezes nothing
    assert all(are_freed)
    assert int(at_exit) <= 0


@pytest.mark.parametrize(
    ("wanted", "is_enabled", "expected"),
    [([True], True, ["collect", "freeze"]), ([True], False, []), ([False], True, []), ([False, True], True, [])],
)
def test_nothing_is_frozen_later_nor_unasked_nor_where_the_collector_is_disabled(
    monkeypatch: pytest.MonkeyPatch, wanted: list[bool], is_enabled: bool, expected: list[str]
) -> None:
    calls = list[str]()
    stand_in = SimpleNamespace(
        isenabled=lambda: is_enabled, unfreeze=list, **{name: partial(calls.append, name) for name in ("collect", "freeze")}
    )
    monkeypatch.setattr(collector, "gc", stand_in)
    monkeypatch.setattr(collector, "_is_first", iter((True,)))
    for is_wanted in wanted:
        collector.freeze_modules(is_wanted)
    assert expected == calls
