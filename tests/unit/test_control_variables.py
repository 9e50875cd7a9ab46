"""Shared variables: versions, compare-and-swap, and values that are copies."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import OptionError
from outlines_cont.control import Shared, Written

_NAMES = st.sampled_from(["a", "b"])
_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _NAMES, st.text(max_size=3)),
        st.tuples(st.just("append"), _NAMES, st.text(max_size=3)),
        st.tuples(st.just("cas"), _NAMES, st.integers(0, 4), st.text(max_size=3)),
    ),
    max_size=20,
)


@settings(max_examples=40)
@given(_CALLS)
def test_the_laws_of_versions(calls: list[tuple[Any, ...]]) -> None:
    shared, plain = Shared(), dict[str, tuple[str, int]]()
    for method, name, *arguments in calls:
        value, version = plain.get(name, (None, 0))
        new = arguments[-1]
        if method == "append" and value is not None:
            new = value + new
        if method == "cas":
            fits = version > 0 and arguments[0] == version
            after = (new, version + 1) if fits else (value, version)
            assert Written(fits, after[1], after[0]) == shared.cas(name, *arguments)
            if fits:
                plain[name] = (new, version + 1)
        else:
            plain[name] = (new, version + 1)
            assert version + 1 == getattr(shared, method)(name, *arguments)
        assert plain.get(name, (None, 0)) == (shared.get(name), shared.version(name))
    assert {name: value for name, (value, _) in plain.items()} == shared.values()
    assert sum(version for _, version in plain.values()) == shared.num_writes


def test_a_value_changes_by_writing_it_only() -> None:
    shared, value = Shared(), {"x": [1]}
    shared.set("a", value)
    value["x"].append(2)
    shared.get("a")["x"].append(3)
    assert shared.get("a") == {"x": [1]}


@pytest.mark.parametrize(("before", "value"), [("a", b"b"), (3, "b"), ("a", 3), (None, 3), ([1], "x")])
def test_only_what_fits_is_appended(before: Any, value: Any) -> None:
    shared = Shared()
    if before is not None:
        shared.set("a", before)
    with pytest.raises(OptionError, match="to append to `a`"):
        shared.append("a", value)
    assert before == shared.get("a")


def test_what_is_no_plain_value_is_refused() -> None:
    for value in (object(), [{"x": {1}}], {(1, object()): 2}):
        with pytest.raises(OptionError, match="as a shared value"):
            Shared().set("a", value)
    with pytest.raises(OptionError, match="name of a shared variable"):
        Shared().get(3)  # type: ignore[arg-type]


def test_threads_lose_no_write() -> None:
    shared = Shared()
    threads = [threading.Thread(target=lambda: [shared.append("a", [1]) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shared.get("a")) == shared.version("a") == 400
