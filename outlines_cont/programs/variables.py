"""`Shared`: thread-safe variables that the forks of a program, or of several, have in common, with version numbers and compare-and-swap.
Values are plain data (str, bytes, numbers, bool, None, and lists, tuples and dicts of these), deep-copied in and out. It also has the
running programs, to detect deadlocks: all forks of all of them wait (unless code outside may write, `is_open`).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

from fsm.process_fork import rlock
from outlines_cont.checks import check
from outlines_cont.errors import OptionError

_PLAIN = (str, bytes, int, float, bool, type(None))


class _Member(Protocol):
    """A program whose forks use the variables; it is stuck if all of them wait for variables that are missing."""

    @property
    def is_stuck(self) -> bool: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a compare-and-swap.

    Attributes:
        is_written: whether the version was the expected one.
        version: of the variable now, 0 if it is missing.
        value: of the variable now, None if it is missing.
    """

    is_written: bool
    version: int
    value: Any


class Shared:
    """Variables by name. The version of a variable is 1 when it is first written, and 1 more at each write.

    All methods are atomic and may be called by any thread.

    Attributes:
        num_writes: the number of writes to all variables.
        is_open: whether code outside of the programs may still write. Then forks continue to wait when no program is left that could
            write, until `Budget(seconds=)` ends them; otherwise they get `DeadlockError`. Set it to False after the last write.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self._values: dict[str, tuple[Any, int]] = {}
        self._lock = rlock()
        self._members: WeakSet[_Member] = WeakSet()
        self.num_writes = 0

    def get(self, name: str) -> Any:
        """Return the value of a variable, None if it is missing."""
        with self._lock:
            return copy.deepcopy(self._values.get(_checked(name), (None, 0))[0])

    def version(self, name: str) -> int:
        """Return the version of a variable, 0 if it is missing."""
        with self._lock:
            return self._values.get(_checked(name), (None, 0))[1]

    def set(self, name: str, value: Any) -> int:
        """Write a variable; return its version.

        Raises:
            OptionError: the value cannot be shared, or the name is not a text.
        """
        _check_value(value)
        with self._lock:
            version = self.version(name) + 1
            self._values[name] = copy.deepcopy(value), version
            self.num_writes += 1
            return version

    def append(self, name: str, value: Any) -> int:
        """Append `value`, a text, bytes or a list, to the value of a variable, or set it if it is missing; return its version.

        Raises:
            OptionError: `value` is of another type than these, or than the value of the variable.
        """
        with self._lock:
            before = self.get(name)
            if not isinstance(value, str | bytes | list):
                raise _not_appended("a text, bytes or a list", name, value)
            if before is not None and type(before) is not type(value):
                raise _not_appended(f"a {type(before).__name__}", name, value)
            joined: Any = value if before is None else operator.add(before, value)
            return self.set(name, joined)

    def cas(self, name: str, version: int, value: Any) -> Written:
        """Write a variable if its version is `version`; a missing variable is never written."""
        with self._lock:
            known = self.version(name)
            if known and known == version:
                return Written(True, self.set(name, value), copy.deepcopy(value))
            return Written(False, known, self.get(name))

    def has(self, names: Sequence[str]) -> bool:
        """Return whether all of some variables were written."""
        with self._lock:
            return all(_checked(name) in self._values for name in names)

    def values(self) -> dict[str, Any]:
        """Return all variables; copies."""
        with self._lock:
            return {name: copy.deepcopy(value) for name, (value, _) in self._values.items()}

    def __deepcopy__(self, memo: object) -> Shared:
        """Return the same object, which forks have in common."""
        return self

    def __repr__(self) -> str:
        return f"Shared({self.values()!r})"

    def join(self, member: _Member) -> None:
        """Add a program that uses the variables."""
        with self._lock:
            self._members.add(member)

    def part(self, member: _Member) -> None:
        """Remove a program that has ended."""
        with self._lock:
            self._members.discard(member)

    @property
    def is_deadlocked(self) -> bool:
        """Whether nothing is left that could write."""
        if self.is_open:
            return False
        with self._lock:
            members = list(self._members)
        return all(member.is_stuck for member in members)


def _not_appended(expected: str, name: str, value: object) -> OptionError:
    return OptionError(
        f"expected {expected} to append to `{name}`, got {type(value).__name__}. For a list of items write "
        f"`append({name!r}, [item])` from the first one on.",
        "value",
    )


def _checked(name: object) -> str:
    return str(check("name", name, isinstance(name, str), "the name of a shared variable, a text,"))


def _check_value(value: object) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            todo += item
        elif not isinstance(item, _PLAIN):
            raise OptionError(
                f"expected a text, bytes, a number, a bool, None, or lists, tuples and dicts of these as a shared value, got "
                f"{type(item).__name__}. Share what describes it.",
                "value",
            )
