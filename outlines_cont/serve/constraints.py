"""`Constraints`: the generators of requests, compiled in a thread, one at a time, and kept: equal constraints are compiled once."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsm import Limits, SchemaError, json_schema
from outlines_cont import generate
from outlines_cont.generate import Generator
from outlines_cont.serve.api_error import APIError, api_error
from outlines_cont.serve.requests import ResponseFormat, StructuredOutputs

_KEPT = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """The constraint of a reply: a kind, its source, and the field of the request that it is from."""

    kind: str
    source: Any = None
    field: str | None = None
    strict: bool = False

    @classmethod
    def of(cls, format_: ResponseFormat | None, outputs: StructuredOutputs | None) -> Wanted:
        """Return the constraint of a request; free text where it has none."""
        if outputs is not None:
            return cls._of_outputs(outputs)
        if format_ is None or format_.type == "text":
            return cls("text")
        if format_.json_schema is None:
            return cls("json", {"type": "object"}, "response_format")
        schema = format_.json_schema
        return cls("json", schema.schema_, "response_format/json_schema/schema", bool(schema.strict))

    @classmethod
    def _of_outputs(cls, outputs: StructuredOutputs) -> Wanted:
        where = "structured_outputs/"
        if outputs.json_object is not None:
            return cls("json", {"type": "object"}, where + "json_object")
        if outputs.json_ is not None:
            return cls("json", _parsed(outputs.json_, where + "json"), where + "json")
        kinds = {"regex": "regex", "choice": "choice", "grammar": "cfg"}
        name = next(name for name in kinds if getattr(outputs, name) is not None)
        return cls(kinds[name], getattr(outputs, name), where + name)

    @property
    def key(self) -> str:
        """What equal constraints have in common. The order of members belongs to a schema."""
        return json.dumps([self.kind, self.source, self.strict])


def _parsed(schema: Any, field: str) -> Any:
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except ValueError as error:
        raise APIError(400, f"expected a JSON schema, got text that is not JSON: {error}", field) from error


class Constraints:
    """Compiles and keeps the generators of one model."""

    def __init__(self, model: Any, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._found: OrderedDict[str, asyncio.Future[Generator]] = OrderedDict()
        self._one_at_a_time = asyncio.Semaphore(1)

    async def generator(self, wanted: Wanted) -> Generator:
        """Return the generator of a constraint, greedy; `APIError` for one that is refused. The event loop is not blocked."""
        found = self._found.get(wanted.key)
        if found is None:
            found = self._found[wanted.key] = asyncio.ensure_future(self._compiled(wanted))
            found.add_done_callback(partial(self._forget_failed, wanted.key))
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(wanted.key)
        try:
            return await asyncio.shield(found)  # others may wait for the same
        except Exception as error:
            raise api_error(error, wanted.field) from error

    def _forget_failed(self, key: str, done: asyncio.Future[Generator]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._found.get(key) is done:
            del self._found[key]

    async def _compiled(self, wanted: Wanted) -> Generator:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._compile, wanted)

    def _compile(self, wanted: Wanted) -> Generator:
        make: Callable[..., Generator] = getattr(generate, wanted.kind)
        if wanted.kind == "text":
            return make(self._model)
        if wanted.kind != "json":
            return make(self._model, wanted.source)
        expression = json_schema(wanted.source, limits=self._limits)
        odd = next((line for line in expression.report if wanted.strict and line.level == "annotated"), None)
        if odd is not None:
            raise SchemaError(f"this is not enforced, and `strict` is true: {odd.note}", odd.pointer)
        return generate.fsm(self._model, expression)


def check_conflict(wanted: Wanted, has_tools: bool) -> None:
    """Raise where a constraint and tools exclude each other."""
    if has_tools and wanted.kind != "text":
        raise APIError(
            400,
            "expected tools or a constraint of the reply, got both: a constrained reply calls no tools",
            wanted.field,
        )
