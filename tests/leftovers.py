"""What a test may not leave changed, since other tests use it: `settings` after each test, `definitions` after each file.

`settings` are those of the process (environment, current folder, signals, and so on), those of torch, and those of every model and
tokenizer that was open before the test. `definitions` are the attributes of our modules and classes, and of open models, by identity, so
that a function that is replaced and not put back is found. pytest itself restores the filters of warnings, and random numbers may be
drawn: no test depends on those of the process. Nothing here imports torch or a package of ours: what is not imported cannot be changed.

It is on with `TEST_LEFTOVERS=1 pytest`: packages that are imported late may change the process themselves, which is no fault of a test.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import cached_property, wraps
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

IS_ON = os.environ.get("TEST_LEFTOVERS") == "1"
"""Whether tests are watched."""
_OURS = ("fsm", "outlines_cont")
_WATCHED = {"outlines_cont.engine.prefill": "EngineModel", "outlines_cont.models.tokenizer.tokenizer": "Tokenizer"}
"""The classes of which each object is noted, by module."""
_MEMORIES = {"_CAPABILITIES", "_CAUSAL", "_INVARIANT", "_shared", "_methods"}
"""Variables of modules that remember what never changes: what is in them is no setting."""
_OF_CLASSES = {"__annotations__", "__abstractmethods__", "__annotate__", "__annotations_cache__", "__dict__", "__weakref__"}
"""Attributes that Python makes when they are first asked for."""
_ENVIRONMENT = "os.environ"
_OF_OTHERS = (
    "PYTEST_CURRENT_TEST", "OUTLINES_CONT_PAGE_SERVER", "OMP_WAIT_POLICY", "TORCHINDUCTOR_CACHE_DIR", "_RJEM_MALLOC_CONF"
)  # fmt: skip
"""Variables of pytest and of fixtures of the session, and those that are set when our package, torch and polars are imported."""
_VALUES = (int, float, str, bytes, tuple, dict, list)
"""Types whose values are compared; those of others are compared by identity."""
_objects: list[ReferenceType[Any]] = []
_lent: list[int] = []

Values = dict[str, Any] | tuple[Any, ...]
Found = dict[tuple[str, int], Any]
"""Values by what has them: its name, and its `id` if there are several."""


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


def changes(before: Found, after: Found) -> list[str]:
    """Return a line for each value that is not what it was. What has come or gone counts in the environment alone: models come and go."""
    return [
        f"{owner} {name}: {_short(old)} is now {_short(new)}"
        for (owner, number), values in before.items()
        if (owner, number) in after and values != after[owner, number]
        for name, old, new in _pairs(values, after[owner, number])
        if not _is_equal(old, new) and (owner == _ENVIRONMENT or _NOTHING not in (old, new))
    ]


def _pairs(before: Values, after: Values) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names of values, with what they were and are."""
    if isinstance(before, tuple):
        yield from zip(_SETTINGS, before, after, strict=True)
    else:
        for name in [*before, *(name for name in after if name not in before)]:
            if name not in _OF_CLASSES:
                old, new = before.get(name, _NOTHING), after.get(name, _NOTHING)
                is_encoded = isinstance(name, bytes)  # of the environment
                yield (_text(name), _text(old), _text(new)) if is_encoded else (name, old, new)


def _text(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, bytes) else value


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
    """Return what every test must find as it is. Cost: 0.05 ms, and 2 us for each open model or tokenizer."""
    found: Found = {(_ENVIRONMENT, 0): _environment(), ("process", 0): _of_process()}
    if torch := sys.modules.get("torch"):
        found["torch", 0] = _of_torch(torch)
    for one in _open():
        if id(one) not in _lent:
            found[type(one).__name__, id(one)] = _of_object(one)
    return found


def _environment() -> dict[str, Any]:
    # Its own dict, as 60 names would be decoded one by one, twice for each test.
    data: dict[Any, Any] = dict(getattr(os.environ, "_data", os.environ))
    for name in _OF_OTHERS:
        data.pop(name, None)
        data.pop(name.encode(), None)
    return data


def _of_process() -> dict[str, Any]:
    return {
        "current folder": os.getcwd(),
        "sys.path": sys.path.copy(),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "timeout of sockets": socket.getdefaulttimeout(),
        "level of logging": (logging.root.level, logging.root.manager.disable),
        "tracing": (sys.gettrace() is None, sys.getprofile() is None),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
    }


def _of_torch(torch: ModuleType) -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "precision of products": torch.get_float32_matmul_precision(),
    }


_SETTINGS = (
    "hugging_face.chat_template", "hugging_face.training", "prefix_cache.max_bytes", "prefix_cache.min_tokens", "kv_store.budget_bytes",
    "pixels.max_bytes", "engine.max_rows", "engine.max_batch_tokens", "constraints.max_bytes", "vocabulary.masks.max_bytes",
)  # fmt: skip
"""The settings of a model or tokenizer, in the order of `_of_object`."""


def _of_object(one: Any) -> tuple[Any, ...]:
    wrapped = getattr(one, "hugging_face", None)
    memo: Any = getattr(one, "memo", None)
    if memo is None or not hasattr(one, "kv_store"):  # a tokenizer, or a model that is being opened
        return getattr(wrapped, "chat_template", _NOTHING), *(_NOTHING,) * 9
    engine, constraints, vocabulary = memo.get("engine"), memo.get("constraints"), memo.get("vocabulary")
    pixels, prefixes = getattr(one, "pixels", None), one.prefix_cache
    return (
        _NOTHING,
        getattr(wrapped, "training", _NOTHING),
        prefixes.max_bytes,
        prefixes.min_tokens,
        one.kv_store.budget_bytes,
        _NOTHING if pixels is None else pixels.max_bytes,
        _NOTHING if engine is None else engine.max_rows,
        _NOTHING if engine is None else engine.max_batch_tokens,
        _NOTHING if constraints is None else constraints.max_bytes,
        _NOTHING if vocabulary is None else vocabulary.masks.max_bytes,
    )


# -- after each file -----------------------------------------------------------------------------------------------------


def definitions() -> Found:
    """Return the attributes of our modules and classes, and those of open models that hide one of their class. Cost: some ms."""
    found: Found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _OURS and isinstance(module, ModuleType):
            found[name, 0] = own = dict(vars(module))
            for key, value in own.items():
                if isinstance(value, type) and value.__module__ == name:
                    found[f"{name}.{key}", 0] = dict(vars(value))
                elif type(value) in (dict, list, set) and not key.startswith("__"):
                    own[key] = None if key in _MEMORIES else ("entries", len(value))
    for one in _open():
        for part in (one, getattr(one, "hugging_face", None), (getattr(one, "memo", None) or {}).get("vocabulary")):
            if part is not None:
                found[f"{type(part).__name__} in use", id(part)] = {"own methods and limits": _hiding(part)}
    return found


def _hiding(part: Any) -> tuple[str, ...]:
    """Return the names that an object has beside its class, such as of a method that was replaced."""
    kind = type(part)
    return tuple(sorted(name for name in vars(part) if hasattr(kind, name) and not isinstance(getattr(kind, name), cached_property)))
