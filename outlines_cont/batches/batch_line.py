"""`BatchLine`: a line of a batch file of OpenAI (`custom_id`, `method`, `url`, `body`), and the records that are written of it. A line that
cannot be sent has an error of its own. `batch_lines`: the lines of a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from outlines_cont.checks import said_of
from outlines_cont.near_names import did_you_mean
from outlines_cont.pipelines.outcome import Failure, InputError, digest_of
from outlines_cont.pipelines.output import json_line

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


class _Request(BaseModel):
    """What a line has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line of a batch.

    Attributes:
        number: its number in the file, from 1.
        id: the id of its record, which changes when the line, its number or the settings of the run change.
        custom_id: the name that the line gives to its request; None if it is unreadable.
        url: where the request goes.
        body: the request.
        failure: why it cannot be sent, with a code as `type`; None if it can.
    """

    number: int
    id: str
    custom_id: str | None = None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None

    @classmethod
    def of(cls, number: int, text: bytes, settings: str, model: str | None) -> BatchLine:
        """Return the line of a text; `settings` is a digest of the run's settings, and `model` the model of requests that name none."""
        id_ = f"batch_req_{digest_of(f'{number} {settings} '.encode() + text)}"
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            return cls(number, id_, failure=Failure("invalid_json_line", f"expected a JSON object, got none: {error}"))
        custom_id = given.get("custom_id") if isinstance(given, dict) else None
        custom_id = custom_id if isinstance(custom_id, str) else None
        try:
            request = _Request.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            told = f"expected an object with `custom_id`, `method`, `url` and `body`. {said_of(first, first['loc'])}"
            return cls(number, id_, custom_id, failure=Failure("invalid_request", told))
        body = request.body if model is None else {"model": model} | request.body
        return cls(number, id_, custom_id, request.url, body, _failure_of(request))

    def answered(self, status: int, body: Any) -> bytes:
        """Return the record of a reply."""
        response = {"status_code": status, "request_id": f"req_{uuid4().hex}", "body": body}
        return json_line({"id": self.id, "custom_id": self.custom_id, "response": response, "error": None})

    def failed(self, failure: Failure) -> bytes:
        """Return the record of a line that has no reply."""
        error = {"code": failure.type, "message": failure.message}
        return json_line({"id": self.id, "custom_id": self.custom_id, "response": None, "error": error})


def _failure_of(request: _Request) -> Failure | None:
    """Return why a request cannot be sent."""
    if request.method != "POST":
        return Failure("invalid_method", f"expected the `method` 'POST', got {request.method[:100]!r}")
    if request.url not in URLS:
        told = f"expected a `url` of {', '.join(map(repr, URLS))}, got {request.url[:100]!r}."
        return Failure("invalid_url", told + did_you_mean(request.url, URLS))
    if request.body.get("stream"):
        return Failure("invalid_request", "expected a `body` without `stream`: the record has the whole reply")
    return None


def batch_lines(path: Path, settings: str, model: str | None) -> Iterator[BatchLine]:
    """Yield the lines of a file, blank ones left out; a `custom_id` that an earlier line has is an error of its line.

    Raises:
        InputError: the file cannot be read.
    """
    known: set[str] = set()
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                line = BatchLine.of(number, text.strip(), settings, model)
                if line.custom_id in known and line.failure is None:
                    told = f"expected a `custom_id` that no earlier line has, got {line.custom_id!r} again"
                    line = BatchLine(number, line.id, line.custom_id, failure=Failure("duplicate_custom_id", told))
                known |= {line.custom_id} if line.custom_id is not None else set()
                yield line
    except OSError as error:
        raise InputError(
            f"expected a file of requests that can be read, but {str(path)!r}: {error.strerror}"
        ) from error
