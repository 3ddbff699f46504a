"""The client's side of a reply: bytes straight to its transport, past aiohttp's writer."""

import asyncio
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from router.proxy.asked import Asked
from router.proxy.body import LAST_CHUNK, chunk
from router.proxy.head import Head
from router.proxy.headers import Ours, reply_head
from router.proxy.sse import STREAM_TYPE


class SentResponse(web.StreamResponse):
    """A reply that has gone past aiohttp's writer: for a handler to return, not to be written."""

    def __init__(self, status: int, *, keeps_alive: bool, bytes_sent: int) -> None:
        super().__init__(status=status)
        self._keeps_alive = keeps_alive
        self._bytes_sent = bytes_sent

    @property
    def prepared(self) -> bool:
        return True

    @property
    def keep_alive(self) -> bool:
        return self._keeps_alive

    @property
    def body_length(self) -> int:
        """Bytes written, head included: what an access log prints."""
        return self._bytes_sent

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: Any = b"") -> None:
        return None


class Client:
    """Writes one reply to one client. After `open` no other replica may be tried.

    `sends_chunks`: the framing that `open` chose. `is_gone()`: a write would raise.
    """

    __slots__ = (
        "_lead",
        "_request",
        "_transport",
        "bytes_sent",
        "is_gone",
        "is_open",
        "keeps_alive",
        "protocol",
        "sends_chunks",
    )

    def __init__(self, request: Asked, high_water_bytes: int) -> None:
        transport = request.transport
        if transport is None:
            # what aiohttp does to a handler whose client has left
            raise asyncio.CancelledError
        transport.set_write_buffer_limits(high=high_water_bytes)
        self._request = request
        self._transport = transport
        self.protocol = request.protocol
        self.is_gone = transport.is_closing
        self._lead = b""
        self.sends_chunks = False
        self.keeps_alive = request.keep_alive
        self.is_open = False
        self.bytes_sent = 0

    @property
    def is_full(self) -> bool:
        """More than the high-water mark is unsent. aiohttp's protocol keeps this flag."""
        return bool(self.protocol.writing_paused)

    async def drained(self) -> None:
        """Wait until the buffer is low, or the client is gone (which may raise ConnectionError)."""
        await self._request.writer.drain()

    def open(self, head: Head, ours: Ours, length: int | None, *, has_body: bool) -> None:
        """Decide the framing. The head itself is sent along with the first bytes after it."""
        is_new = self._request.version >= HttpVersion11
        framing = b""
        if head.content_type == STREAM_TYPE and not head.has(b"x-accel-buffering"):
            framing = b"X-Accel-Buffering: no\r\n"
        if length is not None:
            framing += b"Content-Length: %d\r\n" % length
        elif has_body:
            self.sends_chunks = is_new
            if is_new:
                framing += b"Transfer-Encoding: chunked\r\n"
            else:
                self.keeps_alive = False
        if not self.keeps_alive:
            framing += b"Connection: close\r\n"
        elif not is_new:
            framing += b"Connection: keep-alive\r\n"
        self._lead = reply_head(head, ours, framing)
        self.is_open = True

    def send(self, payload: bytes) -> None:
        """Body bytes, which get the framing that `open` chose."""
        if payload:
            self.send_raw(chunk(payload) if self.sends_chunks else payload)

    def send_raw(self, data: bytes) -> None:
        """Bytes that have their framing already."""
        if self._lead:
            data, self._lead = self._lead + data, b""
        self.bytes_sent += len(data)
        self._transport.write(data)

    def end(self) -> None:
        """The body is complete."""
        if self.sends_chunks:
            self.send_raw(LAST_CHUNK)
        elif self._lead:
            self.send_raw(b"")

    def break_off(self) -> None:
        """Let the client see that the body is not complete."""
        self.keeps_alive = False
        if self._lead:
            self.send_raw(b"")
        if not self.sends_chunks:
            # where only the connection's end frames the body, an orderly end would look whole
            self._transport.abort()

    def abandon(self) -> None:
        """Drop the client and what it has not read."""
        self.keeps_alive = False
        self._transport.abort()
