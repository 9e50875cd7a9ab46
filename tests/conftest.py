"""Fixtures for all tests.

Only what every test needs is imported here: the tests of `fsm` run without torch, and where `tests.vocabularies` cannot be read.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import ssl
from contextlib import ExitStack, nullcontext
from functools import cache, wraps
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.page_server import PageServer, Serving
    from tests.vocabularies import Tokens

# No deadline: how long an example takes depends on what else the machine does.
settings.register_profile("tests", deadline=None, print_blob=True, max_examples=60)
# The same examples in every run (`pytest --hypothesis-profile=ci`): a change is judged by what it does, not by luck.
settings.register_profile("ci", parent=settings.get_profile("tests"), derandomize=True, max_examples=10)
# What `tests.examples` counts is tried a third as often under `ci`, and ten times as often here; what names no number, on 400 examples.
settings.register_profile("thorough", parent=settings.get_profile("tests"), max_examples=400)
settings.load_profile("tests")


# One thread for each process: the tensors are small, and pytest-xdist runs a process on every core. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No model is looked for on the hub, in processes that tests start, too. Read when huggingface_hub is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts its background jobs with Ctrl-C ignored; tests that interrupt something need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules are hardly garbage: no collection looks through them while they are imported.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Start the server of programs that all workers of pytest-xdist share."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from tests.page_server import Serving

        config.add_cleanup(_ended(Serving()))


def _ended(serving: Serving) -> Callable[[], None]:
    """Begin to serve; what ends it."""
    blocks = ExitStack()
    blocks.enter_context(serving)
    return blocks.close


def pytest_collection_finish() -> None:
    """Leave out of every later garbage collection what the modules hold, and collect seldom: a twelfth of all time were collections."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # not at the end of the session, where pytest collects garbage five times
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _heap_is_small() -> Iterator[None]:
    """Leave out of later collections what a file leaves, such as models that files share, and what a server has let go (`gc.unfreeze`).

    Tests that count what is held collect all garbage, some of them for each of many examples: late in a session this took a second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=leftovers.IS_ON)
def _leaves_definitions() -> Iterator[None]:
    """Fail at the end of a file that has replaced a function of ours and not put it back, or whose own fixtures leave settings changed."""
    leftovers.watch()
    before = leftovers.definitions() | leftovers.settings()
    yield
    _check_leftovers(leftovers.changes(before, leftovers.definitions() | leftovers.settings()))
    _told.clear()


@pytest.fixture(autouse=leftovers.IS_ON)
def _leaves_settings(_leaves_definitions: None) -> Iterator[None]:
    """Fail a test that leaves the process, torch or a model that it shares with other tests otherwise than it was."""
    leftovers.watch()
    before = leftovers.settings()
    yield
    _check_leftovers(leftovers.changes(before, leftovers.settings()))


_told: set[str] = set()


def _check_leftovers(changes: list[str]) -> None:
    """Fail for what is not told yet: what a test leaves is left by its file, too."""
    changes = [line for line in changes if line.partition(":")[0] not in _told]
    _told.update(line.partition(":")[0] for line in changes)
    advice = "Put it back (`monkeypatch`, `try ... finally`), or use a model of its own (`fakes.fresh_model`)."
    assert not changes, "expected that tests leave what others use as it was, got\n" + "\n".join(changes) + "\n" + advice


@pytest.fixture(scope="session", autouse=True)
def refused() -> Iterator[list[str]]:
    """Refuse every connection of this process but to the loopback address, and note the hosts."""
    hosts: list[str] = []

    def check(host: Any) -> None:
        host = host.decode() if isinstance(host, bytes) else host
        if not _is_loopback(host):
            hosts.append(host)
            raise AssertionError(f"expected that a test connects to the loopback address alone, got {host!r}. Use a fake.")

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(self: socket.socket, *given: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                check(given[-1][0])
            return function(self, *given)

        return call

    def getaddrinfo(host: Any, *given: Any, **options: Any) -> Any:
        check(host)
        return look_up(host, *given, **options)

    look_up = socket.getaddrinfo
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, checked(getattr(socket.socket, name)))
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield hosts


def _is_loopback(host: str | None) -> bool:
    try:
        return host in (None, "", "localhost") or ip_address(host).is_loopback
    except ValueError:  # another name
        return False


@pytest.fixture(autouse=True)
def _no_connection(refused: list[str]) -> Iterator[None]:
    """Fail a test that tried to connect to another machine, also where what it tests took the error for a lost connection."""
    yield
    hosts = refused.copy()
    refused.clear()
    assert not hosts, f"expected that a test connects to the loopback address alone, got {hosts}. Use a fake."


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Share one context: each client of httpx reads all certificates anew, in 60 ms, and tests make a thousand clients, none of TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session")
def page_server() -> Iterator[PageServer]:
    """Runs programs in other processes, with torch imported once, for all workers."""
    from tests.page_server import ADDRESS, PageServer, Serving

    with nullcontext() if ADDRESS in os.environ else Serving():
        yield PageServer()


@pytest.fixture(scope="session")
def tekken() -> tuple[Tokens, list[int]]:
    """The 131,072 tokens of Mistral's tekken vocabulary, and its EOS ids."""
    from tests.vocabularies import tekken_token_bytes

    return tekken_token_bytes()


@pytest.fixture(scope="session")
def sentencepiece_32k() -> tuple[Tokens, list[int]]:
    """The 32,768 tokens of Mistral's SentencePiece vocabulary, and its EOS ids."""
    from tests.vocabularies import sentencepiece_token_bytes

    return sentencepiece_token_bytes()
