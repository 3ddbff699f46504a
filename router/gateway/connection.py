"""One client's connection: quick requests are served at once, all others by aiohttp."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from router.errors import InvalidRequest, RouterError
from router.gateway.limits import EdgeLimits
from router.gateway.quick import QuickHead, QuickRequest, read_head
from router.gateway.replies import error_response

log = logging.getLogger(__name__)

LINGER_S: Final = 2.0
"""So long the rest of an unwanted body is read, that its sender may see the answer."""
EARLY_BYTES: Final = 256 * 1024
"""Of what a client sends before it has its answer, about so much is read."""
CANCEL_S: Final = 1.0
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class Edge(Protocol):
    """The server that a connection belongs to. `headless`: who began no head, or only began one,
    since when. `answer`: serves a quick request to one of `quick_paths`; whether the connection may
    carry another. `is_closing`: none may."""

    headless: dict["Connection", float]
    limits: EdgeLimits
    quick_paths: Collection[bytes]
    is_closing: bool
    answer: Callable[[QuickRequest], Awaitable[bool]] | None

    def admit(self, connection: "Connection", client: str) -> bool: ...
    def leave(self, connection: "Connection", client: str) -> None: ...


class Connection(RequestHandler):
    """Reads a request here if it is quick and nothing else is under way, else has aiohttp read it.

    Bytes that aiohttp's parser got once are its own until it is known to have used them up.
    """

    __slots__ = ("_client", "_edge", "_is_clean", "_is_fresh", "_known", "_quick", "_quick_task")

    def __init__(self, edge: Edge, **settings: Any) -> None:
        super().__init__(cast(web.Server, edge), **settings)
        self._edge = edge
        self._client = ""
        self._is_clean = True
        self._is_fresh = True
        self._known: QuickHead | None = None
        self._quick: QuickRequest | None = None
        self._quick_task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        if not self._edge.admit(self, self._client):
            cast(asyncio.Transport, transport).write(_TOO_MANY)
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._edge.leave(self, self._client)
        if self._quick_task is not None:
            self._quick_task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._quick is not None:
            self._more(self._quick, data)
        elif self._close or self._force_close:
            return
        elif not self._is_idle or (request := self._read(data)) is None:
            self._pass_on(data)
        else:
            self._edge.headless.pop(self, None)
            self._quick = request
            self._quick_task = self._loop.create_task(self._serve(request))

    def close(self) -> None:
        """Once what is under way has ended."""
        if self._quick is None:
            super().close()
        self._close = True

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        task = self._quick_task
        if task is not None:
            self._close = True
            await asyncio.wait([task], timeout=timeout)
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_S)
        await super().shutdown(timeout)

    def expire(self) -> None:
        """The head took too long."""
        if self.transport is not None:
            self.transport.write(_TOO_LATE)
        self.force_close()

    async def drain(self) -> None:
        """See `quick.Line`."""
        await self._drain_helper()

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

    @property
    def _is_idle(self) -> bool:
        """aiohttp waits for a head, and has not seen a byte of it.

        If it never saw any it need not wait yet: the first request mostly comes before it does.
        """
        if self._is_fresh:
            return True
        return self._is_clean and self._waiter is not None and not self._waiter.done()

    def _read(self, data: bytes) -> QuickRequest | None:
        edge = self._edge
        found = read_head(data, self._known, edge.quick_paths, edge.limits)
        if found is None or found[1] > edge.limits.max_body_bytes:
            return None
        self._known, length, start = found
        request = QuickRequest(self._known, self, length, data[start:])
        request.keep_alive = not edge.is_closing
        return request

    async def _serve(self, request: QuickRequest) -> None:
        keeps_alive = False
        answer = self._edge.answer
        assert answer is not None
        try:
            keeps_alive = await answer(request)
        except ConnectionError:
            log.debug("a client left before its reply was whole")
        finally:
            self._quick_task = None
            self._next(request, keeps_alive=keeps_alive)

    def _next(self, request: QuickRequest, *, keeps_alive: bool) -> None:
        if request.missing and self.transport is not None:
            # closed at once, the answer might be lost with what the client still sends
            request.forget()
            self._loop.call_later(LINGER_S, self.force_close)
            return
        self._quick = None
        if not keeps_alive or self._close:
            self.force_close()
            return
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if request.early:
            self._resume_transport_reading()
            self.data_received(request.early)

    def _more(self, request: QuickRequest, data: bytes) -> None:
        request.feed(data)
        if self._quick_task is None:
            request.forget()
            if not request.missing:
                self.force_close()
        elif len(request.early) > EARLY_BYTES:
            self._pause_transport_reading()

    def _pass_on(self, data: bytes) -> None:
        self._is_fresh = False
        before = self._request_count
        was_clean = self._is_clean
        super().data_received(data)
        if self._request_count != before:
            self._edge.headless.pop(self, None)
        elif self._current_request is None and not self._messages:
            self._edge.headless.setdefault(self, self._loop.time())
        self._is_clean = (
            was_clean
            and self._request_count == before + 1
            and data.endswith(b"\r\n\r\n")
            and bool(self._messages)
            and self._messages[-1][1].is_eof()
        )

    def _process_keepalive(self) -> None:
        if self._quick is not None:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()
