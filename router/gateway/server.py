"""The listener: aiohttp's server with what it lacks against clients that mean no good."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from router.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, RouterError
from router.gateway.replies import error_response

log = logging.getLogger(__name__)

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
SWEEP_S = 1.0
LINGER_S = 2.0
"""So long the rest of an unwanted body is read, that its sender may see the answer."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """What one client may take. `max_connections_per_client` 0: as many as it likes."""

    max_body_bytes: int = 64 * 2**20
    max_head_bytes: int = 16 * 2**10
    max_headers: int = 128
    head_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    keepalive_s: float = 75.0
    max_connections_per_client: int = 0


class Connection(RequestHandler):
    """One client's connection. Watches that a head that was begun is ended."""

    __slots__ = ("_client", "_edge")

    def __init__(self, edge: "EdgeServer", **settings: Any) -> None:
        super().__init__(edge, **settings)
        self._edge = edge
        self._client = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        if not self._edge.admit(self, self._client):
            cast(asyncio.Transport, transport).write(_TOO_MANY)
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._edge.leave(self, self._client)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count != before:
            self._edge.headless.pop(self, None)
        elif self._current_request is None and not self._messages:
            self._edge.headless.setdefault(self, self._loop.time())

    def expire(self) -> None:
        """The head took too long."""
        if self.transport is not None:
            self.transport.write(_TOO_LATE)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp refuses before a handler sees it, in our words: its own show internals."""
        if request.writer.output_size > 0:
            raise ConnectionError("a reply is under way already")
        error = RouterError("The router failed. Its log knows more.")
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            error = InvalidRequest("This is no HTTP request that can be read in one way only.")
        else:
            log.error("a handler failed by a bug", exc_info=exc)
        response = error_response(error, "")
        response.force_close()
        return response


class EdgeServer(web.Server):
    """Makes a `Connection` per client, counts them, and ends those that never finish a head."""

    def __init__(self, handle: Handle, limits: EdgeLimits) -> None:
        super().__init__(
            handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=limits.keepalive_s,
            max_line_size=limits.max_head_bytes,
            max_field_size=limits.max_head_bytes,
            max_headers=limits.max_headers,
            lingering_time=LINGER_S,
        )
        self.headless: dict[Connection, float] = {}
        """Connections without a whole head, and since when."""
        self._limits = limits
        self._by_client: Counter[str] = Counter()
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    def admit(self, connection: Connection, client: str) -> bool:
        """Count it; False if its client has too many."""
        self._by_client[client] += 1
        self.headless[connection] = self._loop.time()
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._expire)
        most = self._limits.max_connections_per_client
        return not client or not most or self._by_client[client] <= most

    def leave(self, connection: Connection, client: str) -> None:
        self.headless.pop(connection, None)
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _expire(self) -> None:
        oldest = self._loop.time() - self._limits.head_timeout_s
        for connection in [c for c, since in self.headless.items() if since <= oldest]:
            del self.headless[connection]
            connection.expire()
        self._sweep = self._loop.call_later(SWEEP_S, self._expire) if self.headless else None

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            self._loop,
            client_max_size=self._limits.max_body_bytes,
        )


async def read_body(request: web.BaseRequest, limits: EdgeLimits) -> bytes:
    """The whole body, decompressed, or PayloadTooLarge, RequestTimeout, InvalidRequest."""
    try:
        if request.content.is_eof():
            # it came along with the head: nothing to wait for
            return await request.read()
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(_CONTINUE)
        async with asyncio.timeout(limits.body_timeout_s):
            return await request.read()
    except TimeoutError as exc:
        raise RequestTimeout(f"The body did not come within {limits.body_timeout_s:g} s.") from exc
    except web.HTTPRequestEntityTooLarge as exc:
        raise PayloadTooLarge(
            f"The body is longer than {limits.max_body_bytes} bytes. "
            "Send less, or raise listen.max_body_bytes."
        ) from exc
    except web.RequestPayloadError as exc:
        raise InvalidRequest("The body is not encoded as its headers say.") from exc
