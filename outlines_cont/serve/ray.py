"""`app`: the server as an application of Ray Serve, with replicas of the model on one machine or many.

    serve run outlines_cont.serve.ray:app model=Qwen/Qwen3-0.6B replicas=2

`Ingress` reads a request, and gives it to one of the replicas (`Replica`), each of which has a model and the application of `make_app`.
Ray's handle routes it, by a request router of ours (`PrefixRouter`): to the replica that has had the longest prefix of its prompt, so that
its prefix cache is hit. Ray Serve restarts and scales replicas, and waits for their requests when they stop.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from fsm import Limits, TokenFSM
from outlines_cont import models
from outlines_cont.serve.app import make_app
from outlines_cont.serve.hosts import KnownHosts, is_loopback
from outlines_cont.serve.limits import ServerLimits
from outlines_cont.serve.prefix_table import PrefixTable, prefix_text
from outlines_cont.serve.protocols.api_error import APIError

Message = MutableMapping[str, Any]
_DEFAULTS = ServerLimits()
_SCOPE = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
)


class Arguments(BaseModel):
    """The arguments of `serve run outlines_cont.serve.ray:app`.

    Attributes:
        model: a name or a folder for `models.transformers`; the bundled model without one.
        name: what requests call it.
        replicas: how many copies of the model answer.
        device: the device of each of them, for example `cuda`.
        cpus: of Ray's, for a replica.
        gpus: of Ray's, for a replica.
        max_requests: how many requests a replica answers at the same time; more wait.
        max_tokens: the most tokens of a text, and the default.
        kv_budget_bytes: the most bytes of keys and values of a replica; more requests wait. None: no limit.
        max_choices, max_body_bytes, max_prompt_characters, max_messages, max_tools, max_phrases, max_phrase_characters, cache_bytes,
            prefix_cache_bytes: see `ServerLimits`; of each replica.
        max_schema_work, max_mask_work: the most steps of work for a schema, and for the mask of a state.
        allow_host: the names by which clients reach Ray's address beside those of its machine, with commas between them. Without one
            all are answered, but at a loopback address only those of the machine.
        cors_origin: the sites whose pages may ask, with commas between them; `*` for all.
        imbalance: how many more requests than the idlest replica one may have and still be preferred for its cache.
        patience: for how many seconds a request waits for the replica that knows its prefix, if that is full or busy.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    name: str | None = None
    replicas: int = 1
    device: str | None = None
    cpus: float = 1
    gpus: float = 0
    max_requests: int = 256
    max_tokens: int = 4_096
    kv_budget_bytes: int | None = None
    max_choices: int = _DEFAULTS.max_choices
    max_body_bytes: int = _DEFAULTS.max_body_bytes
    max_prompt_characters: int | None = None
    max_messages: int = _DEFAULTS.max_messages
    max_tools: int = _DEFAULTS.max_tools
    max_phrases: int = _DEFAULTS.max_phrases
    max_phrase_characters: int = _DEFAULTS.max_phrase_characters
    cache_bytes: int | None = None
    prefix_cache_bytes: int | None = None
    max_schema_work: int = _DEFAULTS.schema.max_work
    max_mask_work: int = _DEFAULTS.max_mask_work
    allow_host: str = ""
    cors_origin: str = ""
    imbalance: int = 8
    patience: float = 1.0

    @property
    def limits(self) -> ServerLimits:
        """The limits of a replica."""
        given = self.model_dump(include={field.name for field in fields(ServerLimits)})
        # Ray counts and holds the requests; the limit of the application would refuse what Ray has let in.
        schema = Limits(max_work=self.max_schema_work)
        return ServerLimits(**{**given, "max_requests": 2 * self.max_requests, "schema": schema})

    @property
    def hosts(self) -> list[str]:
        """The names of `allow_host`."""
        return _names(self.allow_host)

    @property
    def origins(self) -> list[str]:
        """The sites of `cors_origin`."""
        return _names(self.cors_origin)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way to a replica.

    Attributes:
        scope: the scope of ASGI, as far as it is data.
        body: its body.
        prefix: the text that decides about the replica.
    """

    scope: dict[str, Any]
    body: bytes
    prefix: str


class PrefixRouter(RequestRouter):
    """Ray's request router that prefers the replica with the longest known prefix, unless it has too many requests more than another."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without any prefix."""
        self._imbalance, self._patience, self._table = kwargs["imbalance"], kwargs["patience"], PrefixTable()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the owner of the prefix, or all replicas, of which Ray takes the one with the fewest requests, the first of equals."""
        anyone = [random.sample(candidate_replicas, len(candidate_replicas))]
        if pending_request is None:
            return anyone
        pending_request.routing_context.should_backoff = True  # before the next try, if nobody has room
        by_id = {one.replica_id.unique_id: one for one in candidate_replicas}
        owner = self._table.owner(_prefix(pending_request), by_id)
        if owner is None or time.time() - pending_request.created_at > self._patience:
            return anyone
        known = {name: self.replica_queue_len_cache.get(one.replica_id) or 0 for name, one in by_id.items()}
        return [[by_id[owner]]] if known[owner] - min(known.values()) <= self._imbalance else anyone

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember the prefix."""
        self._table.add(_prefix(pending_request), replica_id.unique_id)


def _prefix(request: PendingRequest | None) -> str:
    """Return the prefix of an `Asked`, which may be one of a copy of this module that Ray has made."""
    return str(getattr(request.args[0], "prefix", "")) if request is not None and request.args else ""


class Replica:
    """A model with its engine, and the application that answers for it."""

    def __init__(self, arguments: Arguments) -> None:
        given: dict[str, Any] = {"device": arguments.device, "kv_budget_bytes": arguments.kv_budget_bytes}
        model = models.tiny(**given) if arguments.model is None else models.transformers(arguments.model, **given)
        key, limits = os.environ.get("OUTLINES_CONT_API_KEY"), arguments.limits
        TokenFSM.max_mask_work = limits.max_mask_work
        name = arguments.name or arguments.model or "tiny"
        self._app = make_app(model, name, limits=limits, api_key=key, cors_origins=arguments.origins)
        self._tasks = set[asyncio.Task[None]]()
        self._id = serve.get_replica_context().replica_id.unique_id

    async def answer(self, asked: Asked) -> AsyncIterator[Message]:
        """Yield the messages of ASGI that answer a request; when the iterator is cancelled or closed, the client has gone away."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        task = asyncio.create_task(self._run(asked, sent, gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-replica", self._id.encode())]
                yield message
        finally:
            gone.set()  # the application notices, and ends the task

    async def _run(self, asked: Asked, sent: asyncio.Queue[Message | None], gone: asyncio.Event) -> None:
        unread = [{"type": "http.request", "body": asked.body}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        try:
            await self._app({**asked.scope, "state": {}}, receive, sent.put)
        finally:
            sent.put_nowait(None)


class HostDoor:
    """Checks `Host` and `Origin` of requests, if names are allowed or Ray listens at a loopback address."""

    def __init__(self, arguments: Arguments) -> None:
        self._is_always, self._known = bool(arguments.hosts), KnownHosts(arguments.hosts, arguments.origins)

    def refused(self, request: Request) -> Response | None:
        """Return the error for a request that is refused."""
        address = (request.scope.get("server") or ("", 0))[0]
        if self._is_always or is_loopback(address or ""):
            try:
                self._known.check(request)
            except APIError as error:
                return JSONResponse(error.body, error.status)
        return None


class Ingress:
    """Reads requests, and passes replies on as they come; refuses a foreign `Host`, as the server does that is one process."""

    def __init__(self, replicas: DeploymentHandle[Any], arguments: Arguments) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._door = HostDoor(arguments)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        refused = self._door.refused(request)
        if refused is not None:
            return refused
        body = await request.body()
        scope = {name: request.scope[name] for name in _SCOPE if name in request.scope}
        messages: Any = self._replicas.remote(Asked(scope, body, prefix_text(body)))
        start = await anext(messages)

        async def bodies() -> AsyncIterator[bytes]:
            async for message in messages:
                yield message.get("body", b"")

        reply = StreamingResponse(bodies(), start["status"])
        reply.raw_headers = [*start["headers"]]
        return reply


def app(arguments: Arguments) -> Application:
    """Return the application for `serve run`, or `serve.run`."""
    router: Any = PrefixRouter  # a class, or the path of one
    routing = RequestRouterConfig(
        request_router_class=router, request_router_kwargs=arguments.model_dump(include={"imbalance", "patience"})
    )
    replica: Any = serve.deployment(
        Replica,
        num_replicas=arguments.replicas,
        max_ongoing_requests=arguments.max_requests,
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        request_router_config=routing,
        graceful_shutdown_wait_loop_s=1,
        graceful_shutdown_timeout_s=30,
    )
    ingress: Any = serve.deployment(Ingress, max_ongoing_requests=1_000_000, ray_actor_options={"num_cpus": 0})
    bound: Application = ingress.bind(replica.bind(arguments), arguments)
    return bound
