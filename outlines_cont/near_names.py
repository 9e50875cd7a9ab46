"""Names that somebody has mistyped, or expects from another library: `did_you_mean` suggests the closest known name (by `difflib`).

`NearNames`: a base class whose unknown attributes are an `AttributeError` with advice, or with the closest public name.
`module_attributes`: the same for the names of a module, as its `__getattr__`; `NearKeys`: for the keys of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

_NO_ADVICE: Mapping[str, str] = {}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for a name that is close to a known one, in capitals or not, else an empty text."""
    found = _nearest(name, names)
    return f" Did you mean {found!r}?" if found else ""


def _nearest(name: str, names: Iterable[str]) -> str:
    known = {one.lower(): one for one in names}
    found = get_close_matches(name.lower(), known, 1)
    return known[found[0]] if found else ""


def missing_attribute(
    owner: str, name: str, names: Iterable[str], advice: Mapping[str, str] = _NO_ADVICE
) -> AttributeError:
    """Return the error for an attribute that `owner`, such as "a state", does not have.

    Args:
        owner: its name in the message.
        name: the unknown attribute.
        names: its attributes; the public ones are suggested.
        advice: what to write instead, for names that are not close to the right one.
    """
    near = "" if name.startswith("_") else _nearest(name, [*advice, *(one for one in names if not one.startswith("_"))])
    found = f" {advice[near]}" if near in advice else f" Did you mean {near!r}?" if near else ""
    # Without `obj` Python adds no suggestion of its own, which would repeat ours or contradict the advice.
    return AttributeError(f"{owner} has no attribute {name!r}.{found}", name=name, obj=None)


class NearNames:
    """Tells the closest attribute, or advice, for one that does not exist.

    A subclass gives advice for names that its users expect, in `_advice`. Cost: nothing for attributes that exist; 0.2 ms for others.
    """

    __slots__ = ()

    _advice: ClassVar[Mapping[str, str]] = _NO_ADVICE

    # Type checkers would take it as a promise that all attributes exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name.startswith("__") or hasattr(kind, name):  # a property has raised: its own error is raised again
                return object.__getattribute__(self, name)
            raise missing_attribute(f"{kind.__name__!r} object", name, object.__dir__(self), kind._advice)


class NearKeys(dict[str, Any]):
    """A dict by name, of which an unknown one is a `KeyError` with the closest, such as the captures of a run."""

    def __missing__(self, name: object) -> Any:
        near = did_you_mean(name, self) if isinstance(name, str) else ""
        known = ", ".join(map(repr, self)) or "none"
        raise KeyError(f"no value has the name {name!r}.{near or f' There are {known}.'}")


def module_attributes(
    module: str, names: Iterable[str], advice: Mapping[str, str] = _NO_ADVICE
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, for names that it does not have."""

    def missing(name: str) -> Any:
        raise missing_attribute(f"module {module!r}", name, () if name.startswith("__") else names, advice)

    return missing
