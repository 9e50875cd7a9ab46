"""`CallIds`: the ids of the calls in one reply: nine letters and digits, as Mistral's templates require. `random_call_id`: a new one."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

_LETTERS = string.ascii_letters + string.digits
_SIZE = 9


def random_call_id() -> str:
    """Return a new id of a call: one of 10 ** 16."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_SIZE))


@dataclass(frozen=True, slots=True)
class CallIds:
    """The ids of the calls in one reply: hashes of what draws the reply.

    So a reply has the same ids as a stream, resumed and whole, and every other reply has others.

    Attributes:
        key: what draws the reply: the numbers of its random stream, and how many messages are before it.
        taken: the ids of the calls before it, which are not given again.
    """

    key: tuple[int, ...]
    taken: frozenset[str] = frozenset()

    def of(self, number: int) -> str:
        """Return the id of call `number` of the reply."""
        found = (_hashed((*self.key, number, attempt)) for attempt in count())
        return next(one for one in found if one not in self.taken)


def _hashed(key: tuple[int, ...]) -> str:
    rest = int.from_bytes(blake2b(repr(key).encode(), digest_size=16).digest(), "little")
    letters = []
    for _ in range(_SIZE):
        rest, index = divmod(rest, len(_LETTERS))
        letters.append(_LETTERS[index])
    return "".join(letters)
