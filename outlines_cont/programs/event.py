"""Events of a program (append, retract, capture, fork, finish), and `Replay`, which folds them into the tokens, texts and captures of all
forks. It needs all of them from the first on: an event about an unknown fork, or a retraction beyond its tokens, is an `OptionError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outlines_cont.errors import OptionError


@dataclass(frozen=True, slots=True)
class Append:
    """A token that was appended to a fork; `data` are its bytes, none for a special token."""

    fork: int
    token_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Retract:
    """The number of tokens that were rewound at the end of a fork, and of their bytes."""

    fork: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Capture:
    """A text that a fork has generated under a name."""

    fork: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A new fork, `child`, which continues the present text of `fork`."""

    fork: int
    child: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a fork; `reason` as in `Fork.finish_reason`."""

    fork: int
    reason: str
    error: Exception | None = None


Event = Append | Retract | Capture | Forked | Finish


class Replay:
    """Tokens, texts and captures of all forks after some events.

    Attributes:
        token_ids: of each fork, by its index: what the program has appended.
        data: the same as bytes.
        captures: of each fork, by name; a child has those of its parent.
        finished: the reason of each fork that has finished.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.token_ids: dict[int, list[int]] = {0: []}
        self.data: dict[int, bytes] = {0: b""}
        self.captures: dict[int, dict[str, str]] = {0: {}}
        self.finished: dict[int, str] = {}
        for event in events:
            self.push(event)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Replay:
        """Return the state after some events, such as `result.events`."""
        return cls(events)

    @property
    def texts(self) -> dict[int, str]:
        """The text of each fork, by its index."""
        return {fork: data.decode(errors="replace") for fork, data in self.data.items()}

    def push(self, event: Event) -> None:
        """Apply one event.

        Raises:
            OptionError: it is not an event, or an earlier one is missing.
        """
        if not isinstance(event, Event):
            raise OptionError(f"expected an event, such as `program.events()` yields, got {event!r}", "event")
        missing = event.fork not in self.token_ids
        if missing or (isinstance(event, Retract) and event.num_tokens > len(self.token_ids[event.fork])):
            what = f"fork {event.fork}, which no `Forked` has begun" if missing else "tokens that were never appended"
            raise OptionError(
                f"expected all events of a program, from its first on, got one about {what}: {event!r}. "
                "`result.events` has them all.",
                "event",
            )
        match event:
            case Append(fork, token_id, data):
                self.token_ids[fork].append(token_id)
                self.data[fork] += data
            case Retract(fork, num_tokens, num_bytes):
                del self.token_ids[fork][len(self.token_ids[fork]) - num_tokens :]
                self.data[fork] = self.data[fork][: len(self.data[fork]) - num_bytes]
            case Capture(fork, name, text):
                self.captures[fork][name] = text
            case Forked(fork, child):
                self.token_ids[child] = [*self.token_ids[fork]]
                self.data[child] = self.data[fork]
                self.captures[child] = {**self.captures[fork]}
            case Finish(fork, reason):
                self.finished[fork] = reason

    def __repr__(self) -> str:
        return f"Replay({self.texts!r}, finished={self.finished!r})"
