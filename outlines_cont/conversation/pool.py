"""`ConversationPool`: base class of `BatchedExecutor`: the state that conversations share: model, seed, options, a re-entrant lock, and the
open conversations by number, referenced weakly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import ClosedError
from outlines_cont.interfaces import LanguageModel


@dataclass(frozen=True, eq=False, repr=False)
class ConversationPool:
    """The state that the conversations of one executor share.

    Attributes:
        model: the model of all conversations.
        seed: the seed of the random numbers of conversations without a seed of their own.
        kept_logits_bytes: how many bytes of logits of earlier tokens each conversation keeps.
        lock: the re-entrant lock that every call takes; take it to make several calls atomic.
    """

    model: LanguageModel
    seed: int
    kept_logits_bytes: int
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    _masker: Masker = field(default_factory=Masker)
    _numbers: Iterator[int] = field(default_factory=count)  # of the next conversations
    _by_number: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)  # the open conversations
    _closed: threading.Event = field(default_factory=threading.Event)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed.is_set()

    def _check_open(self) -> None:
        """Raise `ClosedError` if the executor was closed."""
        if self.is_closed:
            raise ClosedError(
                "expected an open executor, got one after `close()`. Make another `BatchedExecutor(model)`."
            )
