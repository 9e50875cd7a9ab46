"""Rounds: engine after engine, each in a fresh process, again and again, so that a slow minute hits all of them alike."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

Message = dict[str, Any]
Send = Callable[[Message], None]
Measure = Callable[..., None]
"""What runs in the process: `measure(send, *arguments)`."""


def in_process(measure: Measure, *arguments: Any, method: str = "spawn", limit: float = 3600.0) -> Iterator[Message]:
    """Run `measure` in a process of its own and yield what it sends.

    Args:
        measure: called as `measure(send, *arguments)` there.
        arguments: what it gets.
        method: `spawn` (a new interpreter) or `fork` (a copy of this process).
        limit: seconds that it may stay silent; then it is ended.

    Yields:
        Its messages. The last one is `{"failed": why}` where it broke off, with `"late": True` if it was ended.
    """
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(measure, sender, arguments))  # type: ignore[attr-defined]
    process.start()
    sender.close()
    try:
        while True:
            if not receiver.poll(limit):
                process.kill()
                yield {"failed": f"no answer within {limit:.0f} s", "late": True}
                return
            message = _receive(receiver, process)
            if message is None:
                return
            yield message
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiver.close()


def _run(measure: Measure, sender: Connection, arguments: tuple[Any, ...]) -> None:
    def send(message: Message) -> None:
        sender.send_bytes(json.dumps(message).encode())

    try:
        measure(send, *arguments)
    except Exception as error:
        send({"failed": f"{type(error).__name__}: {_first_line(error)}"})


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "without a message"


def _receive(receiver: Connection, process: Any) -> Message | None:
    try:
        message: Message = json.loads(receiver.recv_bytes())
        return message
    except EOFError:
        process.join()
        return {"failed": f"the process ended with code {process.exitcode}"} if process.exitcode else None
