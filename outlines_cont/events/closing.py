"""`Closing`: streams that end their work when a `with` block, or an `async with` block, is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """What is closed when a block is left."""

    @abstractmethod
    def close(self) -> None:
        """End the work, wherever it is."""

    @abstractmethod
    async def aclose(self) -> None:
        """Do the same without holding up an event loop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
