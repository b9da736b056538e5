"""Make the application of a server: its routes, their guard, and its writing threads."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from taper_runtime.base.errors import InputError
from taper_runtime.serving.infer_routes import InferRoutes
from taper_runtime.serving.openai_routes import OpenAIRoutes
from taper_runtime.serving.request_error import (
    RequestError,
    as_request_error,
    json_response,
    timed_out,
)
from taper_runtime.serving.server_limits import DEFAULT_LIMITS, ServerLimits
from taper_runtime.serving.server_metrics import ServerMetrics
from taper_runtime.serving.writing_thread import WritingThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from taper_runtime.serving.served_model import ServedModel

    Handler = Callable[[Request, bytes], Awaitable[Response]]

#: Paths that need no key: a machine asks there whether the server lives.
_OPEN_PATHS = ("/health", "/v2/health/live", "/v2/health/ready")

#: The status of a request whose client has gone; it is only counted.
_GONE = 499

_LOG = logging.getLogger("taper.serving")

#: Where a route tells the guard its path, whose parts may vary.
_PATH = "taper.path"


def make_application(
    models: Sequence[ServedModel],
    limits: ServerLimits = DEFAULT_LIMITS,
    *,
    api_key: str | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """Return an ASGI application that serves models.

    Its lifespan starts the threads that write, so the server has to run it, as uvicorn does.

    Parameters
    ----------
    models : sequence of ServedModel
        From :func:`open_model`.
    limits : ServerLimits
        Those that the models were opened with.
    api_key : str, optional
        What requests must send as a bearer token, but for those of health.
    hosts : collection of str, optional
        The names by which requests may call the server, without ports; by default any. A server for
        this machine alone should allow only the machine's own names: a page of a stranger could
        call it from a browser by another.

    Raises
    ------
    InputError
        If there is no model, two have one name, a limit is out of range, or the key is empty or not
        ASCII.
    """
    limits.check()
    if api_key is not None and not (api_key and api_key.isascii()):
        raise InputError("api_key: expected a text of ASCII characters that is not empty")
    by_name = {model.name: model for model in models}
    if not models or len(by_name) < len(models):
        raise InputError(
            f"models: expected models of different names, got {[model.name for model in models]}"
        )
    metrics = ServerMetrics()
    threads = {
        name: WritingThread(model.writer.generator, metrics, name)
        for name, model in by_name.items()
        if model.writer is not None
    }
    openai = OpenAIRoutes(by_name, threads, limits, metrics)
    infer = InferRoutes(by_name, limits)

    async def health(request: Request, body: bytes) -> Response:
        return json_response({"status": "ok"})

    async def show_metrics(request: Request, body: bytes) -> Response:
        return PlainTextResponse(metrics.text(models), media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        for thread in threads.values():
            thread.start()
        yield
        for thread in threads.values():
            await asyncio.to_thread(thread.close)

    handlers: dict[tuple[str, str], Handler] = {
        ("GET", "/health"): health,
        ("GET", "/metrics"): show_metrics,
        ("GET", "/v1/models"): openai.list_models,
        ("GET", "/v1/models/{model}"): openai.get_model,
        ("POST", "/v1/chat/completions"): openai.chat,
        ("POST", "/v1/completions"): openai.complete,
        ("POST", "/v1/embeddings"): openai.embed,
        ("GET", "/v2"): infer.server,
        ("GET", "/v2/health/live"): infer.live,
        ("GET", "/v2/health/ready"): infer.ready,
        ("GET", "/v2/models/{model}"): infer.metadata,
        ("GET", "/v2/models/{model}/ready"): infer.model_ready,
        ("POST", "/v2/models/{model}/infer"): infer.infer,
    }
    routes = [
        Route(path, _endpoint(handler, path, limits), methods=[method])
        for (method, path), handler in handlers.items()
    ]
    guard = Middleware(Guard, limits=limits, metrics=metrics, api_key=api_key, hosts=hosts)
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[guard],
        exception_handlers={HTTPException: _no_route},
    )


def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request with an unknown path or method."""
    assert isinstance(error, HTTPException)
    found = RequestError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return found.response(request.url.path)


def _endpoint(
    handler: Handler, path: str, limits: ServerLimits
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads the body, and reports errors in the protocol's form."""

    async def endpoint(request: Request) -> Response:
        request.scope[_PATH] = path
        try:
            async with asyncio.timeout(limits.timeout_s):
                body = await _read_body(request, limits.max_body_bytes)
                return await _while_connected(handler(request, body), request)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except TimeoutError:
            return timed_out().response(path)
        except Exception as error:  # whatever it is, the client gets an answer
            found = as_request_error(error)
            if found.status == 500:
                _LOG.exception("%s", path)
            return found.response(path)

    return endpoint


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body.

    One that is too large is read to its end, for many clients read no answer before, but not kept.
    """
    size, parts = 0, list[bytes]()
    async for part in request.stream():
        size += len(part)
        if size > most:
            parts.clear()
        else:
            parts.append(part)
    if size > most:
        raise RequestError(
            413, f"body: expected at most {most} bytes, got {size}", code="body_too_large"
        )
    return b"".join(parts)


async def _while_connected(work: Awaitable[Response], request: Request) -> Response:
    """Return the result of a handler, and cancel it if the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_leaves(request))
    tasks = (working, leaving)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _leaves(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Refuses requests with a wrong key or host, or beyond the limit; counts all requests.

    Parameters
    ----------
    app : callable
        The application behind it.
    limits, api_key, hosts
        As of :func:`make_application`.
    metrics : ServerMetrics
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        metrics: ServerMetrics,
        api_key: str | None,
        hosts: Collection[str] | None,
    ) -> None:
        self._app, self._metrics = app, metrics
        self._most, self._hosts = limits.max_requests, hosts
        self._key = None if api_key is None else f"Bearer {api_key}".encode()
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the application do so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), _GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope)
        takes_place = scope["method"] == "POST"
        self._count += takes_place
        try:
            if refusal is None:
                await self._app(scope, receive, counted)
            else:
                await refusal.response(scope["path"])(scope, receive, counted)
        finally:
            self._count -= takes_place
            path = scope.get(_PATH, "other")
            self._metrics.count("server_requests_total", path=path, status=str(status))
            self._metrics.observe("server_request_seconds", time.monotonic() - began, path=path)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return why a request is refused before its body is read; None if it is not."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._hosts is not None and name not in self._hosts:
            return RequestError(
                403,
                f"host: expected one of {', '.join(self._hosts)}, got {name!r}: this server is "
                "for its own machine",
                code="unknown_host",
            )
        is_open = scope["path"] in _OPEN_PATHS
        given = headers.get(b"authorization", b"")
        if self._key is not None and not is_open and not hmac.compare_digest(given, self._key):
            return RequestError(
                401, "expected the server's key as a bearer token", code="invalid_api_key"
            )
        if self._count >= self._most and scope["method"] == "POST":
            self._metrics.count("server_refused_total")
            return RequestError(
                503, f"the server has {self._most} requests already; try later", code="overloaded"
            )
        return None
