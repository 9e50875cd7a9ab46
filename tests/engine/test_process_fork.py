"""Children of `os.fork` while other threads generate: they generate, with the states of before, and no lock of the parent stops them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fsm import process_fork
from outlines_cont import continuous, engine_of, generate, models, samplers
from outlines_cont.errors import ProcessForked
from outlines_cont.generate import Generator
from outlines_cont.models import HuggingFaceModel
from outlines_cont.serve.constraints import Constraints
from outlines_cont.serve.limits import ServerLimits

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),  # of Python 3.12 and later, which is right
    pytest.mark.filterwarnings("ignore:a forward took:RuntimeWarning"),
]
DEADLINE = 120.0
PROMPT = "Message: Hello"


@functools.cache
def _model() -> HuggingFaceModel:
    """One that no other file uses: its locks are counted, and threads generate with it."""
    return models.tiny()


@functools.cache
def _words() -> Generator:
    return generate.regex(_model(), "[a-z ]{12}")


def in_child(function: Callable[[], Any]) -> int:
    """The exit status of a forked child that calls a function: 0 if it returns True, 1 if not, 2 after an error, -9 if it hangs."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if function() else 1
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    end = time.monotonic() + DEADLINE
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            found = os.waitpid(child, 0)
            break
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


@pytest.fixture
def busy() -> Iterator[None]:
    """Another thread that generates: new constraints, prompts, draws, states that go on."""
    is_over = threading.Event()

    def work() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            record = {"type": "object", "properties": {f"k{number}": {"type": "string", "maxLength": 8}}, "required": [f"k{number}"]}
            write = continuous(generate.json(_model(), record, sampler=samplers.multinomial()))
            state = write([f"Message: {number} please send 3 lamps by 2026-05-04, to my address.\nOrder: "] * 2, max_tokens=8)
            continuous(generate.text(_model()))(state + "\n", max_tokens=4)

    _words()  # opened by one thread
    thread = threading.Thread(target=work)
    thread.start()
    yield
    is_over.set()
    thread.join()


def test_a_child_generates_while_another_thread_of_its_parent_does(busy: None) -> None:
    state = continuous(_words())(PROMPT, max_tokens=12)
    expected, wait = str(continuous(_words())(state + "\n", max_tokens=12)), random.Random(3)

    def generates() -> bool:
        record = generate.json(_model(), {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]})
        return _words()(PROMPT, max_tokens=12) == state.generated and record(PROMPT, max_tokens=60)["n"] in (1, 2)

    def continues() -> bool:
        return str(continuous(_words())(state + "\n", max_tokens=12)) == expected

    for _ in range(2):
        for function in (generates, continues):
            time.sleep(wait.random() * 0.05)
            assert in_child(function) == 0
    assert in_child(lambda: in_child(generates) == 0) == 0


def test_a_child_generates_with_several_threads_of_torch(busy: None) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = _words()(PROMPT, max_tokens=12)
        assert in_child(lambda: _words()(PROMPT, max_tokens=12) == expected and torch.get_num_threads() == 1) == 0
    finally:
        torch.set_num_threads(before)


def _told(_: int) -> str:
    found: str = _words()(PROMPT, max_tokens=12)
    return found


class Texts(Dataset[str]):
    """A data set that generates its items."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        return _told(index)


def test_workers_of_multiprocessing_and_of_a_data_loader_generate(busy: None) -> None:
    expected = _words()(PROMPT, max_tokens=12)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_told, range(3)).get(DEADLINE) == [expected] * 3
    loader: Any = DataLoader(Texts(), batch_size=1, num_workers=1, multiprocessing_context="fork", timeout=DEADLINE)
    assert [text for batch in loader for text in batch] == [expected] * 3


def test_what_ran_in_the_parent_runs_there_alone() -> None:
    stream = continuous(_words()).stream(PROMPT)
    events = iter(stream)
    texts = [next(events).text]
    engine = engine_of(_model())

    def is_ended() -> bool:
        with pytest.raises(ProcessForked, match="runs on in the parent"):
            list(events)
        stream.close()
        return engine.num_running == 0 and len(_words()(PROMPT)) == 12

    assert in_child(is_ended) == 0
    texts += [event.text for event in events]
    assert "".join(texts) == _words()(PROMPT)


def test_a_child_forgets_the_threads_that_compile() -> None:
    constraints = Constraints(_model(), ServerLimits().schema)
    constraints._compiling.submit(int).result()  # its thread waits for more

    def compiles() -> bool:
        return constraints._compiling.submit(lambda: 3).result(DEADLINE) == 3

    assert in_child(compiles) == 0


def _held(locks: list[Any]) -> Callable[[], None]:
    """Let another thread hold some locks; return what lets it release them."""
    has_all, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        has_all.set()
        may_end.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    has_all.wait()

    def end() -> None:
        may_end.set()
        thread.join()

    return end


def test_no_lock_of_another_thread_is_held_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_fork, "PATIENCE", 0.05)
    made = [process_fork.lock(), process_fork.rlock(), process_fork.rlock(is_awaited=True), _model().kv_store.lock]
    found = process_fork._locks_of_modules()
    assert len(found) > 7
    own = process_fork.rlock()
    release = _held(locks := list({id(lock): lock for lock in [*made, *found]}.values()))
    try:
        with own:
            assert in_child(lambda: own._is_owned() and all(lock.acquire(timeout=1) for lock in locks)) == 0  # type: ignore[attr-defined]
            assert in_child(lambda: len(_words()(PROMPT)) == 12) == 0
        assert not made[0].acquire(blocking=False)
    finally:
        release()
    assert all(lock.acquire(blocking=False) for lock in locks)
    for lock in locks:
        lock.release()


def test_a_fork_waits_for_a_step_and_for_no_other_lock() -> None:
    awaited, order = process_fork.rlock(is_awaited=True), list[str]()
    taken = threading.Event()

    def step() -> None:
        with awaited:
            taken.set()
            time.sleep(0.2)
            order.append("step")

    thread = threading.Thread(target=step)
    thread.start()
    taken.wait()
    assert in_child(lambda: order == ["step"]) == 0
    thread.join()


class Slow:
    """Has a property that takes until it is told to end."""

    may_end = threading.Event()

    @cached_property
    def value(self) -> int:
        self.may_end.wait()
        return 3


def test_properties_that_another_thread_computes_are_computed_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(functools.cached_property(len), "lock"):
        pytest.skip("properties have no lock here")
    monkeypatch.setitem(engine_of.__globals__, "Slow", Slow)
    slow = Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()

    def computes() -> bool:
        Slow.may_end = threading.Event()
        Slow.may_end.set()
        return Slow().value == 3

    assert in_child(computes) == 0
    Slow.may_end.set()
    thread.join()


_RESET = {"job.py", "engine_thread.py", "constraints.py", "slow_work.py", "model_list.py", "request_images.py"}
"""Modules whose objects are made anew in a child, or belong to a call, which ends there."""


def test_every_lock_of_an_object_is_free_in_a_child() -> None:
    root = Path(process_fork.__file__).parents[1]
    pattern = re.compile(r"self\.\w+(?:: [^=\n]+)? = (?:threading\.)?(?:R?Lock|Condition|\w*Semaphore|Barrier|ThreadPoolExecutor)\(")
    files = [path for package in ("fsm", "outlines_cont") for path in (root / package).rglob("*.py")]
    assert {path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))} == _RESET, "use those of `process_fork`"
