"""`BatchRun`: sends the lines of a batch file, many at the same time, and writes a record for each as soon as its reply is there: replies
to the output, errors to the file of errors, both of whole lines at any time. A run that was interrupted can be resumed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outlines_cont.batches.batch_line import BatchLine, batch_lines
from outlines_cont.batches.doors import Door
from outlines_cont.pipelines.extraction import Tally
from outlines_cont.pipelines.outcome import Failure, SetupError, digest_of
from outlines_cont.pipelines.output import Stamp, WriteLine, check_output, file_output, stamp_of

_OK = 200


class BatchRun:
    """A batch. Everything is checked when it is made, before anything is sent.

    Args:
        source: the file of requests.
        output: the file of the replies.
        errors: the file of the records of failed requests; it is made with the first of them.
        settings: what a reply depends on besides its line, of which a resumed run must have the same.
        model: the model of requests that name none; None leaves them as they are.
        at_once: how many requests are sent at the same time.
        resume, overwrite: continue files that exist, or replace them.

    Attributes:
        tally: the progress.

    Raises:
        SetupError: a file cannot be written, exists, or was not made from this input with these settings.
        InputError: the input cannot be read.
    """

    def __init__(
        self,
        source: Path,
        output: Path,
        errors: Path,
        *,
        settings: Any = None,
        model: str | None = None,
        at_once: int = 64,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self._source, self._model, self._at_once, self._overwrite = source, model, at_once, overwrite
        self._settings = digest_of(repr(settings).encode())
        self._paths = {"output": output, "errors": errors}
        if resume and overwrite:
            raise SetupError("expected --resume or --overwrite, got both. The first keeps what the output holds.")
        if output.absolute() == errors.absolute():
            raise SetupError(f"expected two files for replies and errors, got {str(output)!r} for both")
        for path in self._paths.values():
            check_output(path, source, resume=resume, overwrite=overwrite)
        known = {line.id for line in self._lines()}
        self._keep: dict[str, int] = {}  # the bytes that stay of files that exist
        self._done: set[str] = set()
        self._num_failed = 0
        self._seen: dict[str, Stamp] = {}
        for name, path in self._paths.items() if resume else ():
            if path.exists():
                self._seen[name] = stamp_of(path)
                self._keep[name] = self._read(path, known)
        self.tally = Tally(len(known), skipped=len(self._done))
        self.tally.failed = self._num_failed

    def run(self, door: Door, show: Callable[[Tally], object]) -> None:
        """Send all lines that have no record yet; `show` is called after each record. Raises the errors of the door and of writing."""
        if self._overwrite:
            for path in self._paths.values():
                path.unlink(missing_ok=True)
        with ExitStack() as stack:
            writers: dict[str, WriteLine] = {}

            def write(name: str, record: bytes) -> None:
                if name not in writers:
                    output = file_output(self._paths[name], self._keep.get(name), self._seen.get(name))
                    writers[name] = stack.enter_context(output)
                writers[name](record)

            write("output", b"")  # it is locked before anything is sent
            asyncio.run(self._send_all(door, write, show))

    async def _send_all(self, door: Door, write: Callable[[str, bytes], None], show: Callable[[Tally], object]) -> None:
        running: set[asyncio.Task[None]] = set()

        async def answer(line: BatchLine) -> None:
            name, record, failure = await self._answered(line, door)
            write(name, record)
            self.tally.count(line.number, failure)
            show(self.tally)

        try:
            for line in self._lines():
                if line.id in self._done:
                    continue
                if len(running) >= self._at_once:
                    running = await _some_ended(running)
                running.add(asyncio.create_task(answer(line)))
            while running:
                running = await _some_ended(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _answered(self, line: BatchLine, door: Door) -> tuple[str, bytes, Failure | None]:
        """Return the record of a line, and the name of its file."""
        if line.failure is not None:
            return "errors", line.failed(line.failure), line.failure
        status, data = await door(line.url, line.body)
        try:
            body = json.loads(data)
        except ValueError:
            failure = Failure("invalid_reply", f"expected a reply of JSON, got status {status} and {data[:200]!r}")
            return "errors", line.failed(failure), failure
        if status == _OK:
            return "output", line.answered(status, body), None
        error = body.get("error") if isinstance(body, dict) else None
        told = error.get("message", "") if isinstance(error, dict) else ""
        return "errors", line.answered(status, body), Failure(f"status {status}", str(told))

    def _lines(self) -> Iterator[BatchLine]:
        return batch_lines(self._source, self._settings, self._model)

    def _read(self, path: Path, known: set[str]) -> int:
        """Note the records of an earlier run, and return the bytes of their lines; what follows is a line that was cut.

        Raises:
            SetupError: one is of another input, or was made with other settings.
        """
        size = 0
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):
                    break
                try:
                    record = json.loads(text)
                    id_, is_error = (
                        record["id"],
                        record["error"] is not None or record["response"]["status_code"] != _OK,
                    )
                except (ValueError, TypeError, KeyError, RecursionError):
                    id_, is_error = "", False
                if id_ not in known:
                    raise SetupError(
                        f"expected records of this input, model and options, but line {number} of {str(path)!r} is another one. "
                        "Give the same ones as before, name another file, or start again with --overwrite."
                    )
                self._done.add(id_)
                self._num_failed += is_error
                size += len(text)
        return size


async def _some_ended(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a task has ended, raise its error, and return the others."""
    ended, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    return others
