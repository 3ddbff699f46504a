"""Connections to one origin. Bytes are stamped in the callback that brings them, before anything
else is done with them; there is no task, queue or buffer between the socket and the stamp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, cast

from loadgen.http import Origin, ProtocolError, ResponseParser, request_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEEP_ALIVE_S: Final = 4.0
"""Below uvicorn's five seconds: else a connection can be closed just as we send on it."""

DRAIN_S: Final = 2.0
"""For what follows an answer's end, so that the connection can be used again."""

Clock = Callable[[], float]


class Disconnected(Exception):
    """The connection ended before the response did."""


class Receiver(Protocol):
    """Who wants the response. `body` is called once per read, with the time of that read."""

    def head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def body(self, at: float, data: bytes) -> bool:
        """True: that was all I need."""


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._clock = pool.clock
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser = ResponseParser()
        self._drain: asyncio.TimerHandle | None = None
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Until the receiver has enough or the response ends. Disconnected, ProtocolError."""
        if self._transport is None:
            raise Disconnected("closed before the request was sent")
        self._parser = ResponseParser()
        self._receiver = receiver
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await waiter
        except BaseException:
            # Given up: whatever still comes must not be taken for the next answer.
            self._receiver = self._waiter = None
            self.abort()
            raise

    def abort(self) -> None:
        """Close now, dropping what is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        at = self._clock()
        parser, receiver = self._parser, self._receiver
        if receiver is None and self._drain is None:
            self.abort()  # nobody asked
            return
        had_head = parser.status
        try:
            body = parser.feed(data)
        except ProtocolError as exc:
            self._fail(exc)
            return
        if receiver is not None:
            if not had_head and parser.status:
                receiver.head(parser.status, parser.headers)
            is_enough = receiver.body(at, body) if body else False
            if is_enough or parser.is_done:
                self._answered()
        if parser.is_done:
            self._free()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        if self._drain is not None:
            self._drain.cancel()
        if self._waiter is None:
            return
        if exc is None and self._parser.close():
            self._answered()
        else:
            cause = f": {exc}" if exc else ""
            self._fail(Disconnected(f"the connection ended inside the response{cause}"))

    def _answered(self) -> None:
        waiter, self._waiter, self._receiver = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if not self._parser.is_done and self._transport is not None:
            self._drain = asyncio.get_running_loop().call_later(DRAIN_S, self.abort)

    def _free(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None
        if self._parser.keeps_alive and self.is_open:
            self.idle_since = self._clock()
            self._pool.give_back(self)
        else:
            self.abort()

    def _fail(self, exc: Exception) -> None:
        waiter, self._waiter, self._receiver = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(exc)
        self.abort()


class Pool:
    """As many connections as there are requests open: a limit would hold requests back unseen."""

    def __init__(self, origin: Origin, clock: Clock) -> None:
        self.clock = clock
        self._origin = origin
        self._tls = ssl.create_default_context() if origin.is_tls else None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, receiver: Receiver
    ) -> None:
        """OSError when nobody listens; else as `Connection.exchange`."""
        request = request_head(self._origin, path, headers, len(body)) + body
        connection = self._take() or await self._connect()
        await connection.exchange(request, receiver)

    def give_back(self, connection: Connection) -> None:
        """It can carry another request. The last one used is taken first."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """It ended."""
        self._all.discard(connection)

    def close(self) -> None:
        """End all connections, whatever they carry."""
        for connection in tuple(self._all):
            connection.abort()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self.clock() - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        origin = self._origin
        _, connection = await loop.create_connection(
            lambda: Connection(self),
            origin.host,
            origin.port,
            ssl=self._tls,
            server_hostname=origin.host if self._tls else None,
        )
        self._all.add(connection)
        return connection


@asynccontextmanager
async def open_pool(origin: Origin, clock: Clock) -> AsyncIterator[Pool]:
    """Closes what it opened, and gives the loop a turn to do so."""
    pool = Pool(origin, clock)
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0)
