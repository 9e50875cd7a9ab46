"""`Opening`: the call that opened a model (function and options), by which it is pickled instead of its weights. Unpickling returns the
model that this process opened by an equal call, or repeats the call once and compares the fingerprint of config and weights
(`ModelMismatch`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from outlines_cont.errors import ModelMismatch

_LOCK = threading.RLock()
# The models of this process by their openings.
_OPEN: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()
_NUMBERS = count(1)


def next_number() -> str:
    """Return what tells the next model of this process from those before it in a text: nothing for the first, then `, #2` and so on."""
    number = next(_NUMBERS)
    return f", #{number}" if number > 1 else ""


@dataclass(frozen=True, slots=True)
class Opening:
    """A call of a public function of `models` with options by name that opened a model.

    `name` is equal for equal calls; `number` distinguishes the models of equal calls that are open, from 0.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    name: str
    number: int = 0

    @classmethod
    def of(cls, model: object, function: Callable[..., Any], options: Mapping[str, Any]) -> Opening:
        """Return the opening of a newly opened model, and register the model in this process (weakly)."""
        name = f"{function.__name__}({', '.join(f'{key}={options[key]!r}' for key in sorted(options))})"
        with _LOCK:
            number = next(n for n in range(len(_OPEN) + 1) if (name, n) not in _OPEN)
            _OPEN[name, number] = model
        return cls(function, options, name, number)


def reopened(opening: Opening, fingerprint: str) -> Any:
    """Return the model of an opening: the one that is open in this process, or else a new one.

    Raises `ModelMismatch` where its config or weights are not those of `fingerprint`, and what opening the model raises.
    """
    key = opening.name, opening.number
    with _LOCK:
        if (known := _OPEN.get(key)) is not None:
            return known
        model = opening.function(**opening.options)
        if model.fingerprint != fingerprint:
            raise ModelMismatch(
                f"expected the model that was pickled ({fingerprint[:12]}), but {opening.name} opens another one now "
                f"({model.fingerprint[:12]}): its files or its weights were changed. Save the changed model with "
                "`save_pretrained`, open it from there, and pickle that."
            )
        _OPEN.pop((model.opening.name, model.opening.number), None)
        _OPEN[key] = model
        model.opening = opening
        return model
