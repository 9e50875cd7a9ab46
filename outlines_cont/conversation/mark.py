"""`Mark`: a place in a conversation that one can return to."""

from __future__ import annotations


class Mark:
    """A place in a conversation, made by `conversation.mark()`. It is known there and in forks that were made later.

    Attributes:
        length: the number of tokens at that place.
    """

    __slots__ = ("__weakref__", "length")

    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return f"<Mark after {self.length} tokens>"
