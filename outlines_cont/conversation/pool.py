"""`ConversationPool`: the state that the conversations of one executor share: model, seed, options, a re-entrant lock, and the open
conversations by number, referenced weakly.
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


@dataclass(slots=True, eq=False)
class ConversationPool:
    """The state that the conversations of one executor share; its options are those of `BatchedExecutor`.

    Attributes:
        lock: taken while a conversation is read or changed.
        numbers: those of the next conversations.
        conversations: the open ones by number.
    """

    model: LanguageModel
    seed: int
    kept_logits_bytes: int
    is_closed: bool = False
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    masker: Masker = field(default_factory=Masker)
    numbers: Iterator[int] = field(default_factory=count)
    conversations: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)

    def check_open(self) -> None:
        """Raise `ClosedError` if the executor was closed."""
        if self.is_closed:
            raise ClosedError(
                "expected an open executor, got one after `close()`. Make another `BatchedExecutor(model)`."
            )
