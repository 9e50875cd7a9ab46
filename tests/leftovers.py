"""What a test may not leave changed, since other tests use it: `settings` after each test, `definitions` after each file.

`settings` are those of the process (environment, current folder, signals, and so on), those of torch, and those of every model and
tokenizer that was open before the test. `definitions` are the attributes of our modules and classes, and of open models, by identity, so
that a function that is replaced and not put back is found. pytest itself restores the filters of warnings, and random numbers may be
drawn: no test depends on those of the process. Nothing here imports torch or a package of ours: what is not imported cannot be changed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property, wraps
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

_OURS = ("fsm", "outlines_cont")
_WATCHED = {"outlines_cont.engine.prefill": "EngineModel", "outlines_cont.models.tokenizer.tokenizer": "Tokenizer"}
"""The classes of which each object is noted, by module."""
_MEMORIES = {"_CAPABILITIES", "_CAUSAL", "_INVARIANT", "_shared", "_methods"}
"""Variables of modules that remember what never changes: what is in them is no setting."""
_OF_CLASSES = {"__annotations__", "__abstractmethods__", "__annotate__", "__annotations_cache__", "__dict__", "__weakref__"}
_ENVIRONMENT = "os.environ"
_VALUES = (int, float, str, bytes, tuple, dict, list)
"""Types whose values are compared; those of others are compared by identity."""
_objects: list[ReferenceType[Any]] = []
_lent: list[int] = []

Found = dict[tuple[str, int, str], Any]
"""Values by what has them (its name, and its `id` if there are several) and their own name."""


def watch() -> None:
    """Note each model and tokenizer that is opened from now on; does nothing until their classes are imported. Cost: 1 us."""
    for module, name in _WATCHED.items():
        if (found := getattr(sys.modules.get(module), name, None)) and not hasattr(found.__init__, "is_watched"):
            found.__init__ = _noting(found.__init__)


def _noting(init: Any) -> Any:
    @wraps(init)
    def noted(self: Any, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        _objects.append(ref(self))

    noted.is_watched = True  # type: ignore[attr-defined]
    return noted


def lend(model: object) -> None:
    """Leave the settings of a model to somebody who changes them and puts them back, such as a server, until `take_back`."""
    _lent.append(id(model))


def take_back(model: object) -> None:
    """Watch a model again that was lent."""
    _lent.remove(id(model))


def _open() -> list[Any]:
    """Return the models and tokenizers that are alive."""
    found = [(reference, one) for reference in _objects if (one := reference()) is not None]
    _objects[:] = [reference for reference, _ in found]
    return [one for _, one in found]


def changes(before: Mapping[tuple[str, int, str], Any], after: Mapping[tuple[str, int, str], Any]) -> list[str]:
    """Return a line for each value that is not what it was. What has come or gone counts in the environment alone: models come and go."""
    names = [key for key in before if key in after or key[0] == _ENVIRONMENT]
    names += [key for key in after if key[0] == _ENVIRONMENT and key not in before]
    pairs = [(key, before.get(key, _NOTHING), after.get(key, _NOTHING)) for key in names]
    return [f"{owner} {name}: {_short(old)} is now {_short(new)}" for (owner, _, name), old, new in pairs if not _is_equal(old, new)]


def _is_equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _VALUES) and one == other)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


# -- after each test -----------------------------------------------------------------------------------------------------


def settings() -> Found:
    """Return what every test must find as it is. Cost: 0.05 ms, and some us for each open model."""
    found: Found = {(_ENVIRONMENT, 0, name): value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    found |= {("process", 0, name): value for name, value in _of_process()}
    if torch := sys.modules.get("torch"):
        found |= {("torch", 0, name): value for name, value in _of_torch(torch)}
    for one in _open():
        if id(one) not in _lent:
            found |= {(type(one).__name__, id(one), name): value for name, value in _of_object(one)}
    return found


def _of_process() -> Iterator[tuple[str, Any]]:
    yield "current folder", os.getcwd()
    yield "sys.path", tuple(sys.path)
    yield "recursion limit", sys.getrecursionlimit()
    yield "switch interval", sys.getswitchinterval()
    yield "garbage collection", (gc.isenabled(), gc.get_threshold())
    yield "timeout of sockets", socket.getdefaulttimeout()
    yield "level of logging", (logging.root.level, logging.root.manager.disable)
    yield "tracing", (sys.gettrace() is None, sys.getprofile() is None)
    yield "hook of exceptions", (sys.excepthook, threading.excepthook, sys.unraisablehook)
    yield "standard streams", (sys.stdin is None, sys.stdout is None)
    for name in ("SIGINT", "SIGTERM"):
        yield name, signal.getsignal(getattr(signal, name))


def _of_torch(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    yield "default dtype", torch.get_default_dtype()
    yield "number of threads", torch.get_num_threads()
    yield "deterministic algorithms", (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    yield "gradients", (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    yield "precision of products", torch.get_float32_matmul_precision()
    yield "default device", str(torch.get_default_device())


def _of_object(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a model or tokenizer, among them those that its engine and its caches have before they are made."""
    wrapped = getattr(one, "hugging_face", None)
    if hasattr(wrapped, "chat_template"):
        yield "hugging_face.chat_template", wrapped.chat_template
    memo = getattr(one, "memo", None)
    if memo is None or not hasattr(one, "kv_store"):  # a tokenizer, or a model that is being opened
        return
    yield "prefix_cache.max_bytes", one.prefix_cache.max_bytes
    yield "prefix_cache.min_tokens", one.prefix_cache.min_tokens
    yield "kv_store.budget_bytes", one.kv_store.budget_bytes
    if (pixels := getattr(one, "pixels", None)) is not None:
        yield "pixels.max_bytes", pixels.max_bytes
    if wrapped is not None:
        yield "hugging_face.training", wrapped.training
        yield "hugging_face.config._attn_implementation", wrapped.config._attn_implementation
    if (engine := memo.get("engine")) is not None:
        yield "engine.max_rows", engine.max_rows
        yield "engine.max_batch_tokens", engine.max_batch_tokens
    if (constraints := memo.get("constraints")) is not None:
        yield "constraints.max_bytes", constraints.max_bytes
    if (vocabulary := memo.get("vocabulary")) is not None:
        yield "vocabulary.masks.max_bytes", vocabulary.masks.max_bytes


# -- after each file -----------------------------------------------------------------------------------------------------


def definitions() -> Found:
    """Return the attributes of our modules and classes, and those of open models that hide one of their class. Cost: some ms."""
    found: Found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _OURS and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                found[name, 0, key] = _size(value) if _is_registry(key, value) else value
                if isinstance(value, type) and value.__module__ == name:
                    found |= {(f"{name}.{key}", 0, own): kept for own, kept in list(vars(value).items()) if own not in _OF_CLASSES}
    for one in _open():
        for part in (one, getattr(one, "hugging_face", None), (getattr(one, "memo", None) or {}).get("vocabulary")):
            if part is not None:
                found[type(part).__name__, id(part), "own methods and limits"] = _hiding(part)
    return found


def _is_registry(name: str, value: Any) -> bool:
    return type(value) in (dict, list, set) and name not in _MEMORIES and not name.startswith("__")


def _size(value: Any) -> tuple[str, int]:
    return "entries", len(value)


def _hiding(part: Any) -> tuple[str, ...]:
    """Return the names that an object has beside its class, such as of a method that was replaced."""
    kind = type(part)
    return tuple(sorted(name for name in vars(part) if hasattr(kind, name) and not isinstance(getattr(kind, name), cached_property)))
