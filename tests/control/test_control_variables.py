"""Shared variables: versions, compare-and-swap, and values that are copies."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import control
from outlines_cont.control import Shared, Written
from outlines_cont.errors import OptionError
from tests.examples import examples
from tests.fakes import random_model

_NAMES = st.sampled_from(["a", "b"])
_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _NAMES, st.text(max_size=3)),
        st.tuples(st.just("append"), _NAMES, st.text(max_size=3)),
        st.tuples(st.just("cas"), _NAMES, st.integers(0, 4), st.text(max_size=3)),
    ),
    max_size=20,
)


@settings(max_examples=examples(40))
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


def test_a_refused_append_says_how_a_list_is_collected() -> None:
    shared = Shared()
    with pytest.raises(OptionError, match=r"got int\. For a list of items write `append\('n', \[item\]\)`"):
        shared.append("n", 1)
    shared.append("n", "one")
    with pytest.raises(OptionError, match="expected a str to append to `n`, got list"):
        shared.append("n", ["two"])


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


@pytest.mark.parametrize("kind", ["script", "controller"])
def test_open_variables_may_be_written_from_outside(kind: str) -> None:
    model, variables = random_model(), Shared(is_open=True)
    calls: list[int] = []

    async def script() -> None:
        (text,) = await control.shared.wait("text")
        await control.fixed(text)

    def controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[control.Branch]:
        calls.append(1)
        text = None if last_append else variables.get("text")
        if text is None:
            return [] if last_append else [control.Branch()]
        return [control.Branch(ff_tokens=[model.tokenizer.encode(text)])]

    chosen: Any = script if kind == "script" else controller
    timer = threading.Timer(0.3, lambda: variables.set("text", "yes"))
    timer.start()
    before = time.process_time()
    assert control.run(model, chosen, "the", shared=variables).text == "yes"
    # It waits in steps of a hundredth of a second, without asking anybody.
    assert time.process_time() - before < 0.25
    assert len(calls) < 5

    program = control.start(model, chosen, "the", shared=Shared(is_open=True), budget=control.Budget(seconds=0.2))
    assert variables.set("text", "") > 1
    if kind == "script":
        with pytest.raises(control.ProgramTimeout):
            program.result().check()
    else:
        program.cancel()
        assert program.result().forks[0].finish_reason == "cancelled"


def test_a_program_that_waits_for_somebody_outside_can_be_cancelled() -> None:
    variables = Shared(is_open=True)

    async def script() -> None:
        await control.shared.wait("never")

    program = control.start(random_model(), script, "the", shared=variables)
    timer = threading.Timer(0.2, program.cancel)
    timer.start()
    with pytest.raises(control.ProgramCancelled):
        program.result().check()

    program = control.start(random_model(), script, "the", shared=variables)
    timer = threading.Timer(0.2, lambda: setattr(variables, "is_open", False))
    timer.start()
    assert program.result().forks[0].finish_reason == "deadlock"
