"""`RequestImages`: the images of a request, opened within the limits of the server: those in `data:` URLs, and those that are fetched
from hosts that the operator has named. They are fetched by threads of their own, so that a slow host holds up no other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsm.process_fork import reset_in_child
from outlines_cont.models.image_file import ImageLimits, open_image
from outlines_cont.serve.image_urls import ImageHosts
from outlines_cont.serve.limits import ServerLimits
from outlines_cont.serve.protocols.api_error import APIError

_THREADS = 8
Messages = Sequence[dict[str, Any]]


class RequestImages:
    """What opens the images of requests.

    Args:
        hosts: those from which images are fetched.
        limits: of the server.
    """

    def __init__(self, hosts: ImageHosts, limits: ServerLimits) -> None:
        self._hosts = hosts
        self._limits = ImageLimits(limits.max_image_bytes, limits.max_image_pixels)
        self._max_bytes, self._seconds = limits.max_image_bytes, limits.max_image_seconds
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        """Begin without a thread: the child of a fork has none."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="image-urls")

    async def fetched(self, urls: Sequence[str]) -> dict[str, bytes]:
        """Return what is at the URLs that are no `data:` URLs, by these; raise `APIError` for one that cannot be fetched."""
        wanted = [*dict.fromkeys(url for url in urls if not _is_data(url))]
        for url in wanted:
            self._hosts.check(url)  # before anything is fetched
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(self._threads, self._hosts.fetch, url, self._max_bytes, self._seconds)
            for url in wanted
        ]
        try:
            found = await asyncio.wait_for(asyncio.gather(*calls), self._seconds + 1)
        except TimeoutError as error:
            told = f"expected images that can be fetched within {self._seconds:g} s (`--max-image-seconds`)"
            raise APIError(400, told, "messages", "invalid_image") from error
        return dict(zip(wanted, found, strict=True))

    def opener(self, fetched: dict[str, bytes]) -> Callable[[Messages], list[dict[str, Any]]]:
        """Return what opens the images of messages, with what was fetched; it raises `ImageError`. Call it in a thread: it decodes."""

        def part(given: Any) -> Any:
            if not isinstance(given, dict) or given.get("type") != "image_url":
                return given
            url = given["image_url"]["url"]
            return {"type": "image", "image": open_image(fetched.get(url, url), self._limits)}

        def opened(messages: Messages) -> list[dict[str, Any]]:
            contents = ((message, message.get("content")) for message in messages)
            return [
                {**message, "content": [*map(part, content)]} if isinstance(content, list) else message
                for message, content in contents
            ]

        return opened

    def close(self) -> None:
        """Take no more URLs."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"
