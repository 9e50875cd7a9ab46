"""`Closing`: base class of streams: a context manager, synchronous and asynchronous, that calls `close` when its block ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager, also with `async with`, that calls `close` at its end."""

    @abstractmethod
    def close(self) -> None:
        """End the work."""

    async def aclose(self) -> None:
        """End the work in another thread, so that the event loop is not blocked."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
