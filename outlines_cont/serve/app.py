"""`make_app`: the FastAPI application of one model or several: `/v1/chat/completions`, `/v1/completions`, `/v1/responses`,
`/v1/messages`, `/v1/models`, `/health` and `/metrics`, and the inspector at `/`.

A request is read and checked, and its choices become rows of the engine; when the client goes away they are cancelled within a step.
Errors have the form of OpenAI's API, below `/v1/messages` the form of Anthropic's. The log has a line for each request, without its text.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
import sys
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fsm import SchemaWarning, TokenFSM
from outlines_cont.checks import said_of
from outlines_cont.errors import ContextLengthError, OptionError
from outlines_cont.generation.engine_thread import EngineThread, Reading
from outlines_cont.models.collector import IdleCollections
from outlines_cont.policies.slow_work import JobBound
from outlines_cont.serve.hosts import KnownHosts, is_loopback
from outlines_cont.serve.image_urls import ImageHosts
from outlines_cont.serve.limits import Door, ServerLimits
from outlines_cont.serve.live import live_router
from outlines_cont.serve.metrics import Metrics
from outlines_cont.serve.model_list import ModelList
from outlines_cont.serve.protocols import anthropic
from outlines_cont.serve.protocols.anthropic import CountRequest, MessagesErrorBody, MessagesRequest
from outlines_cont.serve.protocols.api_error import APIError, ErrorBody, advice_for, api_error
from outlines_cont.serve.protocols.choice import Answer
from outlines_cont.serve.protocols.replies import Writer, sent
from outlines_cont.serve.protocols.requests import ChatRequest, CompletionRequest
from outlines_cont.serve.protocols.responses import ResponsesRequest
from outlines_cont.serve.request_images import RequestImages
from outlines_cont.serve.served_model import AnyRequest, ServedModel

log = logging.getLogger("outlines_cont.serve")
_SWITCH_SECONDS = 0.001  # for which a thread that compiles or makes masks holds up a forward
_CLIENT_GONE = 499  # as nginx logs it; nobody reads the reply
_MAX_DIGITS = 18  # of a length
_NOT_ADMITTED = 401
_IS_JSON = re.compile(r"\s*application/([\w.-]+\+)?json\s*(;|$)", re.IGNORECASE)
_FORMS = {
    "application/json": {"schema": {"type": "object"}},
    "text/event-stream": {},
}  # no schema of OpenAPI 3.1 is one of events
_REPLIES: dict[int | str, dict[str, Any]] = {200: {"description": "The reply, whole or as events", "content": _FORMS}}
_BODIES: dict[str, type[AnyRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    anthropic.PATH: MessagesRequest,
    f"{anthropic.PATH}/count_tokens": CountRequest,
}


def make_app(
    model: Any,
    name: str,
    *,
    others: Mapping[str, Callable[[], Any]] | None = None,
    limits: ServerLimits | None = None,
    api_key: str | None = None,
    hosts: Iterable[str] | None = None,
    cors_origins: Sequence[str] = (),
    image_hosts: Iterable[str] = (),
) -> FastAPI:
    """Return the application that serves a model, or several.

    Args:
        model: the model, of `models.transformers` for example.
        name: what requests call it.
        others: by their names, functions that open further models; each is called in a thread when a request first names its model.
        limits: of the server and of each request.
        api_key: the key that clients send as `Authorization: Bearer ...`; None lets everybody in.
        hosts: the names by which clients may reach the server beside those of this machine itself (`localhost`, `127.0.0.1`, `[::1]`),
            so that no page of another site can; None allows all.
        cors_origins: the sites whose pages may ask, such as `https://app.example`; `*` for all.
        image_hosts: the hosts from which images are fetched, such as `images.example`; none fetches nothing. See `image_urls.ImageHosts`.
    """
    errors: Any = {status: {"model": ErrorBody, "description": "An error"} for status in ("4XX", "5XX")}
    app = FastAPI(title="outlines-cont", docs_url=None, redoc_url=None, responses=errors)
    limits = limits or ServerLimits()
    metrics = Metrics()
    images = RequestImages(ImageHosts(image_hosts), limits)
    models = ModelList(partial(ServedModel, limits=limits, images=images), model, name, others or {}, limits, metrics)
    known = None if hosts is None else KnownHosts(hosts, cors_origins)
    server = Server(models, limits, metrics, api_key, known)
    app.state.server = server
    app.add_middleware(Guard, server=server)
    if cors_origins:  # outside of the guard: a browser asks first, without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[*cors_origins],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    app.add_exception_handler(APIError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, lambda request, error: _refused(request, api_error(error)))
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(ValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]

    app.include_router(live_router(models, limits, server.door, has_key=api_key is not None))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def all_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def all_models() -> dict[str, Any]:
        ends = {"first_id": models.names[0], "last_id": models.names[-1], "has_more": False}  # Anthropic's
        return {"object": "list", "data": models.cards(), **ends}

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> dict[str, Any]:
        return models.card(model_id)

    @app.post("/v1/chat/completions", responses=_REPLIES)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await server.reply(body, request)

    @app.post("/v1/completions", responses=_REPLIES)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await server.reply(body, request)

    @app.post("/v1/responses", responses=_REPLIES)
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        return await server.reply(body, request)

    @app.post("/v1/responses/input_tokens")
    async def input_tokens(body: ResponsesRequest, request: Request) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": await server.count(body, request)}

    own_errors: Any = {status: {"model": MessagesErrorBody, "description": "An error"} for status in ("4XX", "5XX")}

    @app.post(anthropic.PATH, responses=_REPLIES | own_errors)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        return await server.reply(body, request)

    @app.post(f"{anthropic.PATH}/count_tokens", responses=own_errors)
    async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
        return {"input_tokens": await server.count(body, request)}

    return app


class Guard:
    """Middleware: checks host, key and size of a request, and counts and logs it after the last byte of its reply.

    `HEAD` is answered as `GET`, without a body, and `OPTIONS` with the methods of the path.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), _CLIENT_GONE
        is_head = scope["method"] == "HEAD"

        async def noted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send({**message, "body": b""} if is_head and "body" in message else message)

        request = Request(scope)
        scope = {**scope, "method": "GET"} if is_head else scope
        try:
            self._server.check(request)
            await self._app(scope, receive, noted)
        except APIError as error:
            await _refused(request, error)(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - start
            path = getattr(scope.get("route"), "path", "other")
            model = scope.get("state", {}).get("model", "")
            self._server.metrics.requests.labels(model, path, str(status)).inc()
            self._server.metrics.seconds.labels(model, path).observe(seconds)
            log.info("%s %s %d %.0f ms", request.method, path, status, 1e3 * seconds)


class Server:
    """What all requests share."""

    def __init__(
        self,
        models: ModelList[ServedModel],
        limits: ServerLimits,
        metrics: Metrics,
        api_key: str | None,
        hosts: KnownHosts | None,
    ) -> None:
        self.models, self.limits, self.metrics, self._hosts = models, limits, metrics, hosts
        # As bytes: clients send UTF-8, or the bytes of an environment that has other ones.
        self._key = None if api_key is None else api_key.encode(errors="surrogateescape")
        self.door = Door(limits)

    def check(self, request: Request) -> None:
        """Raise `APIError` for a request without the key, or one that is too large."""
        if self._hosts is not None:
            self._hosts.check(request)
        if self._key is not None and request.method != "OPTIONS" and not _is_open(request):
            self._check_key(self._key, request)
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not length.isdecimal():
            raise APIError(411, "expected a request with `Content-Length`", None, "length_required")
        most = self.limits.max_body_bytes
        if length.isdecimal() and (len(length) > _MAX_DIGITS or int(length) > most):
            raise APIError(413, f"expected at most {most} bytes, got {length[:_MAX_DIGITS]}", None, "request_too_large")
        kind = request.headers.get("content-type", "")
        if request.method == "POST" and not _IS_JSON.match(kind):
            got = repr(kind[:200]) if kind else "none"
            raise APIError(
                400, f"expected `Content-Type: application/json`, got {got}", None, "unsupported_content_type"
            )

    @staticmethod
    def _check_key(key: bytes, request: Request) -> None:
        """Raise `APIError` unless the key was sent as `Authorization` or, as clients of Anthropic may send it, as `X-Api-Key`."""
        pairs = [one.partition(" ") for one in request.headers.getlist("authorization")]
        given = [rest.strip() for scheme, _, rest in pairs if scheme.lower() == "bearer"]
        given += request.headers.getlist("x-api-key")
        if not any(hmac.compare_digest(one.encode("latin-1"), key) for one in given):  # the bytes that were sent
            raise APIError(
                401, "expected the key of this server as `Authorization: Bearer ...`", None, "invalid_api_key"
            )

    async def reply(self, body: AnyRequest, request: Request) -> Response:
        """Return the reply, whole or as a stream."""
        self._note_model(body, request)
        start = time.perf_counter()
        async with AsyncExitStack() as stack:
            stack.enter_context(self.door.entered(body.num_choices))
            asking = asyncio.ensure_future(self._asked(body))
            try:
                async with _watched(request.receive, asking.cancel):
                    await asyncio.wait((asking,))
            finally:
                asking.cancel()
            if asking.cancelled():
                self.metrics.cancelled.labels(body.model).inc()
                return Response(status_code=_CLIENT_GONE)
            try:
                thread, answer, writer = asking.result()
            except ValidationError:
                raise  # of a request of Responses, as one of Chat Completions; see `_invalid`
            except Exception as error:
                raise api_error(error) from error
            reading = Reading(thread, answer.streams, is_whole=not body.stream)
            if body.stream:
                parts = self._server_sent(body.model, answer, writer, reading, start, stack.pop_all())
                return _EventStream(parts, reading.leave)
            async with reading, _watched(request.receive, reading.leave):
                try:
                    found = [pair async for items in reading for pair in answer.counted(items)]
                except Exception as error:
                    raise api_error(error) from error
                if reading.is_left:
                    self.metrics.cancelled.labels(body.model).inc()
                    return Response(status_code=_CLIENT_GONE)
            self._count(body.model, answer, reading, start)
            return JSONResponse(writer.whole(found))

    async def count(self, body: CountRequest | ResponsesRequest, request: Request) -> int:
        """Return how many tokens the prompt of a request has, even if they are too many for the model."""
        self._note_model(body, request)
        with self.door.entered(1):
            try:
                _, answer, _ = await self._asked(body)
            except APIError as error:
                if isinstance(error.__cause__, ContextLengthError):
                    return error.__cause__.length
                raise
            for stream in answer.streams:
                stream.close()
            return answer.counts["prompt"]

    def _note_model(self, body: AnyRequest, request: Request) -> None:
        """Note the model of a request for the metrics; `APIError` for one that there is not."""
        self.models.check(body.model)
        request.state.model = body.model

    async def _asked(self, body: AnyRequest) -> tuple[EngineThread, Answer, Writer]:
        served = await self.models.get(body.model)
        return served.thread, *await served.asked(body)

    async def _server_sent(
        self, model: str, answer: Answer, writer: Writer, reading: Reading, start: float, stack: AsyncExitStack
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a reply as server-sent events, all that are ready at once; an error is the last of them."""
        is_whole, ready = False, list[bytes]()
        async with stack, reading:
            try:
                yield sent(writer.first())
                async for items in reading:
                    for choice, event in answer.counted(items):
                        ready.append(writer.sent(choice, event))
                    yield b"".join(ready)
                    ready.clear()
                if not reading.is_left:
                    yield sent(writer.last()) + writer.end
                    is_whole = True
            except Exception as error:
                yield b"".join([*ready, sent(writer.failed(api_error(error)))])
                is_whole = True
            finally:
                if not is_whole:
                    self.metrics.cancelled.labels(model).inc()
                self._count(model, answer, reading, start)

    def _count(self, model: str, answer: Answer, reading: Reading, start: float) -> None:
        if reading.first is not None:
            self.metrics.first.labels(model).observe(reading.first - start)
        for kind, count in answer.counts.items():
            self.metrics.tokens.labels(model, kind).inc(count)


def _is_open(request: Request) -> bool:
    """Whether a request needs no key: the page has no text but its own, and what it asks for needs the key."""
    path = request.url.path
    return path in ("/", "/health") or (path.startswith("/models/") and path.endswith("/"))


class _EventStream(Response):
    """A response that sends parts as they come, each in one message, if there is anything in it.

    Args:
        parts: the parts, each one event or several.
        leave: called when the client goes away; it ends `parts`.
    """

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncGenerator[bytes, None], leave: Callable[[], None]) -> None:
        self._parts, self._leave = parts, leave
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        async with aclosing(self._parts) as parts, _watched(receive, self._leave):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in parts:
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def _watched(receive: Receive, leave: Callable[[], object]) -> AsyncIterator[None]:
    """Call a function if the client goes away while the block runs."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def _refused(request: Request, error: APIError, headers: Mapping[str, str] | None = None) -> Response:
    found = dict(headers or {})
    if error.retry_after is not None:
        found["Retry-After"] = str(error.retry_after)
    if error.status == _NOT_ADMITTED:
        found["WWW-Authenticate"] = "Bearer"
    body = anthropic.error_body(error) if request.url.path.startswith(anthropic.PATH) else error.body
    return JSONResponse(body, error.status, found)


def _no_path(request: Request) -> APIError:
    return APIError(404, f"{request.method} {request.url.path[:200]}: Not Found", None, "not_found")


def _invalid(request: Request, error: RequestValidationError | ValidationError) -> Response:
    # Of a union the member that fits best. A misspelt field of the request may be why another is missing.
    first = max(
        error.errors(),
        key=lambda one: (len(one["loc"]), _is_unknown(one) and len(one["loc"]) == 2, not one["type"].endswith("_type")),
    )
    place = _place(first, getattr(error, "body", None))
    kind = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}.get(
        first["type"], "invalid_value"
    )
    if field := (first.get("ctx") or {}).get("field"):  # of a validator of the part around it
        place = [*place, *([] if place[-1:] == [field] else [field])]
    message = said_of(first, place)
    asked = _BODIES.get(request.url.path)
    if asked is not None and len(place) == 1 and (_is_unknown(first) or first["type"] == "none_required"):
        advice = advice_for(place[0], [field.alias or name for name, field in asked.model_fields.items()])
        message += f".{advice}" if advice and f"'{place[0]}'" not in advice else ""
    return _refused(request, APIError(400, message, "/".join(place) or None, kind))


def _is_unknown(error: Any) -> bool:
    return bool(error["type"] == "extra_forbidden")


def _place(error: Any, body: Any) -> list[str]:
    """Return where in a body an error is, without the names of forms."""
    found = []
    for part in error["loc"][1:]:
        is_key = isinstance(body, dict) and part in body
        if is_key or (isinstance(body, list) and isinstance(part, int)):
            body = body[part]
            found.append(str(part))
    return [*found, str(error["loc"][-1])] if error["type"] == "missing" and isinstance(body, dict) else found


def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return _refused(request, _no_path(request))
    if request.method == "OPTIONS":
        methods = {*(error.headers or {}).get("Allow", "").split(", "), "OPTIONS"}
        methods |= {"HEAD"} if "GET" in methods else set()
        return Response(status_code=204, headers={"Allow": ", ".join(sorted(methods))})
    code = {405: "method_not_allowed"}.get(error.status_code, "invalid_body")
    told = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return _refused(request, APIError(error.status_code, told, None, code), error.headers)


def run(
    model: Any,
    name: str,
    *,
    host: str,
    port: int,
    others: Mapping[str, Callable[[], Any]] | None = None,
    limits: ServerLimits,
    api_key: str | None,
    allow_hosts: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    image_hosts: Sequence[str] = (),
) -> None:
    """Serve a model, or several with `others` of `make_app`, until Ctrl-C or SIGTERM; then wait up to 30 s for the requests that are being
    answered. After SIGTERM the process ends by the signal.

    At a loopback address, or with `allow_hosts`, clients reach it by the names of this machine and by those alone.

    Raises:
        OptionError: the address cannot be listened on, such as one whose port is in use.
    """
    import uvicorn

    hosts = [host, *allow_hosts] if allow_hosts or is_loopback(host) else None
    app = make_app(
        model,
        name,
        others=others,
        limits=limits,
        api_key=api_key,
        hosts=hosts,
        cors_origins=cors_origins,
        image_hosts=image_hosts,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        told = f"expected an address that is free to listen on, got {host!r} with port {port}: {error}"
        raise OptionError(told, "port") from error
    warnings.simplefilter("ignore", SchemaWarning)  # of requests; `strict` makes them errors
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    TokenFSM.max_mask_work = limits.max_mask_work
    JobBound.most = limits.max_slow_work
    sys.setswitchinterval(_SWITCH_SECONDS)
    door = app.state.server.door
    with listening, suppress(KeyboardInterrupt), IdleCollections(lambda: not door.num_inside):
        shown = f"[{host}]" if ":" in host else host
        names, port = ", ".join(map(repr, (name, *(others or ())))), listening.getsockname()[1]
        log.info("serving %s at http://%s:%d/v1, and a page to try it at /", names, shown, port)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=30)
        uvicorn.Server(config).run(sockets=[listening])
