"""`Constraints`: the generators and tools of requests, compiled in a thread, one at a time, and kept: equal ones are compiled once.
A compilation ends when no request waits for it any more.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsm import Expression, Limits, SchemaError, gbnf, grammar, json_schema, tag, tool_schema, triggered
from fsm.process_fork import reset_in_child
from fsm.terms import work
from outlines_cont import generate
from outlines_cont.chats.tool import Tool
from outlines_cont.device import trimmer
from outlines_cont.generate import Generator
from outlines_cont.policies.constraint import expression_bytes
from outlines_cont.serve.protocols.api_error import APIError, api_error
from outlines_cont.serve.protocols.requests import ResponseFormat, StructuredOutputs
from outlines_cont.serve.protocols.tools import CustomTool, FunctionTool

_THREADS = 4
_IS_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
"""A rule of llama.cpp's notation; in Lark's a definition has one colon."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The constraint of a reply: a kind, its source, and the field of the request that it is from."""

    kind: str
    source: Any = None
    field: str | None = None
    strict: bool = False

    @classmethod
    def of(cls, format_: ResponseFormat | None, outputs: StructuredOutputs | None, field: str) -> Wanted:
        """Return the constraint of a request, whose schema is in a field; free text if it has none."""
        if outputs is not None:
            return cls._of_outputs(outputs)
        if format_ is None or format_.type == "text":
            return cls("text")
        if format_.json_schema is None:
            return cls("json", {"type": "object"}, field)
        schema = format_.json_schema
        return cls("json", {} if schema.schema_ is None else schema.schema_, field, bool(schema.strict))

    @classmethod
    def _of_outputs(cls, outputs: StructuredOutputs) -> Wanted:
        where = "structured_outputs/"
        if outputs.json_object is not None:
            return cls("json", {"type": "object"}, where + "json_object")
        if outputs.json_ is not None:
            return cls("json", _parsed(outputs.json_, where + "json"), where + "json")
        if outputs.structural_tag is not None:
            return cls("structural_tag", outputs.structural_tag.model_dump(by_alias=True), where + "structural_tag")
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
    except (ValueError, RecursionError) as error:
        raise APIError(400, f"expected a JSON schema, got text that is not JSON: {error}", field) from error


class _Compilation:
    """A constraint that is made in a thread, or was.

    Args:
        make: makes it.
        threads: the threads that call it.

    Attributes:
        done: its result.
        num_waiting: how many requests wait for it.
    """

    def __init__(self, make: Callable[[], Any], threads: ThreadPoolExecutor) -> None:
        self._make, self.num_waiting, self._is_left = make, 0, False
        self.done = asyncio.get_running_loop().run_in_executor(threads, self._run)

    def _run(self) -> Any:
        with work.cancellable(lambda: self._is_left):
            return self._make()

    def leave(self) -> None:
        """End it, if it has not ended."""
        self._is_left = True
        self.done.cancel()


class Constraints:
    """Compiles and keeps the generators and the tools of one model; what is over `max_bytes` goes when the next has been made."""

    def __init__(self, model: Any, limits: Limits, max_bytes: int = 256 << 20) -> None:
        self._model, self._limits, self._text, self.max_bytes = model, limits, generate.text(model), max_bytes
        self._reset()
        reset_in_child(self._reset)

    def _reset(self) -> None:
        """Begin without a thread: the child of a fork has none."""
        self._found: OrderedDict[str, _Compilation] = OrderedDict()
        self._term_bytes: dict[str, int] = {}
        # Threads take turns: a schema that takes a second delays others by as long as they take themselves.
        self._compiling = ThreadPoolExecutor(_THREADS, thread_name_prefix="outlines-cont-compile")

    async def generator(self, wanted: Wanted) -> Generator:
        """Return the generator of a constraint, greedy; `APIError` for one that is refused. The event loop is not blocked."""
        if wanted.kind == "text":
            return self._text
        found: Generator = await self._kept(wanted.key, lambda: self._generator(wanted), wanted.field)
        return found

    async def tools(self, described: Sequence[FunctionTool | CustomTool]) -> list[Tool]:
        """Return the tools of a request, in the same way."""
        makes = [(one.model_dump_json(), partial(self._tool, one)) for one in described]
        return [await self._kept(key, make, f"tools/{i}") for i, (key, make) in enumerate(makes)]

    async def _kept(self, key: str, make: Callable[[], Any], field: str | None) -> Any:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Compilation(partial(self._made, key, make), self._compiling)
            found.done.add_done_callback(partial(self._note_end, key))
        self._found.move_to_end(key)
        found.num_waiting += 1
        try:
            return await asyncio.shield(found.done)  # others may wait for the same
        except Exception as error:
            raise api_error(error, field) from error
        finally:
            found.num_waiting -= 1
            if not found.num_waiting and not found.done.done():
                self._forget(key, found.done)  # a later request has it compiled anew
                found.leave()

    def _made(self, key: str, make: Callable[[], Any]) -> Any:
        made = make()
        self._term_bytes[key] = len(key) + (expression_bytes(made.expression) if isinstance(made, Tool) else 0)
        return made

    def _note_end(self, key: str, done: asyncio.Future[Any]) -> None:
        """Forget what has failed, and, if everything that is kept takes too much, what was not used for the longest time."""
        if done.cancelled() or done.exception() is not None:
            self._forget(key, done)
        self._term_bytes = {key: self._term_bytes.get(key, 0) for key in self._found}
        sizes = {key: self._term_bytes[key] + _nbytes(found.done) for key, found in self._found.items()}
        total = sum(sizes.values())
        for oldest in [*self._found][:-1]:
            if total <= self.max_bytes:
                return
            if self._found[oldest].done.done():
                del self._found[oldest]
                total -= sizes[oldest]
                trimmer.let_go(sizes[oldest])

    def _forget(self, key: str, done: asyncio.Future[Any]) -> None:
        known = self._found.get(key)
        if known is not None and known.done is done:
            del self._found[key]

    def _tool(self, described: FunctionTool | CustomTool) -> Tool:
        tool = Tool.of(described.model_dump(exclude_none=True), self._limits)
        _check_strict(tool.expression, described.is_strict)
        return tool

    def _generator(self, wanted: Wanted) -> Generator:
        if wanted.kind == "structural_tag":
            return generate.fsm(self._model, self._structural_tag(wanted.source))
        if wanted.kind == "cfg":
            read = gbnf if _IS_GBNF.search(wanted.source) else grammar
            return generate.fsm(self._model, read(wanted.source, limits=self._limits), end=generate.ENDS["cfg"])
        make: Callable[..., Generator] = getattr(generate, wanted.kind)
        if wanted.kind != "json":
            return make(self._model, wanted.source)
        schema = wanted.source
        if wanted.strict and isinstance(schema, dict):
            schema = tool_schema({"type": "json_schema", "schema": schema, "strict": True})
        expression = json_schema(schema, limits=self._limits)
        _check_strict(expression, wanted.strict)
        return generate.fsm(self._model, expression, end=generate.ENDS["json"])

    def _structural_tag(self, source: Any) -> Expression:
        tags = [
            tag(one["begin"], json_schema(one["schema"], limits=self._limits), one["end"])
            for one in source["structures"]
        ]
        return triggered(tags, source["triggers"])


def _nbytes(found: asyncio.Future[Any]) -> int:
    """Return about how many bytes the constraint of a generator takes now; what is not made yet takes none."""
    if not found.done() or found.cancelled() or found.exception() is not None:
        return 0
    made = found.result()
    return made.nbytes if isinstance(made, Generator) else 0


def _check_strict(expression: Expression, strict: bool) -> None:
    """Raise `SchemaError` for what a strict schema says and nothing enforces."""
    odd = next((line for line in expression.report if strict and line.level == "annotated"), None)
    if odd is not None:
        raise SchemaError(f"this is not enforced, and `strict` is true: {odd.note}", odd.pointer)
