"""The listener: aiohttp's server with what it lacks against clients that mean no good."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from router.errors import InvalidRequest, PayloadTooLarge, RequestTimeout
from router.gateway.connection import LINGER_S, Connection
from router.gateway.limits import EdgeLimits
from router.gateway.quick import QuickRequest

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Answer = Callable[[QuickRequest], Awaitable[bool]]
SWEEP_S = 1.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LastRequest(web.BaseRequest):
    """A connection's last: its reply says so."""

    @property
    def keep_alive(self) -> bool:
        return False


class EdgeServer(web.Server):
    """Makes a `Connection` per client, counts them, and ends those that never finish a head.

    `answer` serves what is quick and for one of `quick_paths`, `handle` all else.
    """

    def __init__(
        self,
        handle: Handle,
        limits: EdgeLimits,
        answer: Answer | None = None,
        quick_paths: Collection[bytes] = (),
    ) -> None:
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
        self.limits = limits
        self.answer = answer
        self.quick_paths = quick_paths if answer is not None else ()
        self.is_closing = False
        """Whether each request from now on is its connection's last."""
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
        most = self.limits.max_connections_per_client
        return not client or not most or self._by_client[client] <= most

    def leave(self, connection: Connection, client: str) -> None:
        self.headless.pop(connection, None)
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _expire(self) -> None:
        oldest = self._loop.time() - self.limits.head_timeout_s
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
        # of what follows an Upgrade in the same read, aiohttp's parser loses the beginning
        is_last = self.is_closing or hdrs.UPGRADE in message.headers
        kind = LastRequest if is_last else web.BaseRequest
        return kind(
            message,
            payload,
            protocol,
            writer,
            task,
            self._loop,
            client_max_size=self.limits.max_body_bytes,
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
