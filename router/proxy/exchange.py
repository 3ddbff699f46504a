"""One request on one connection, from its sending to the end of its reply."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from router.errors import (
    ReplicaFailed,
    ReplicaTimeout,
    ReplicaUnreachable,
    RouterError,
)
from router.proxy.body import Body, FixedBody, body_of
from router.proxy.client import Client
from router.proxy.head import BadReply, Head, Heads, looks_like_http
from router.proxy.headers import SentHeads
from router.proxy.refusal import REFUSALS, RefusalSplice
from router.proxy.reply import Limits, Listener
from router.proxy.splice import EventSplice, PlainSplice, Splice
from router.proxy.sse import STREAM_TYPE
from router.proxy.upstream import Upstream
from router.replicas.replica import Replica

REFUSED_SILENCE_S = 1.0
"""A reply that still comes is let come, also from an engine that takes nothing new."""
_JSON = b"application/json"


class Errand(Struct):
    """What stays the same over all tries of one request."""

    client: Client
    method: str
    path: str
    listener: Listener
    limits: Limits
    clock: Callable[[], float]
    heads: Heads
    sent_heads: SentHeads
    added: Sequence[tuple[bytes, bytes]] = ()
    tries: int = 0
    refusals: Collection[int] = REFUSALS
    """Statuses with which another replica is tried."""


class Exchange:
    """Reads the head, chooses how the body is spliced, watches the time and the client.

    Afterwards: `failure` tells why the reply is not whole (None: it is). `is_client_gone`: it left,
    or would not read.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_client",
        "_clock",
        "_errand",
        "_feed",
        "_has_body",
        "_heard_at",
        "_is_paused",
        "_splice",
        "_started_at",
        "_turn",
        "_upstream",
        "failure",
        "first_byte_at",
        "head",
        "is_client_gone",
        "is_over",
        "is_stale",
        "replica",
    )

    def __init__(self, errand: Errand, replica: Replica) -> None:
        self.replica = replica
        self.head: Head | None = None
        self.failure: RouterError | None = None
        self.first_byte_at: float | None = None
        self.is_client_gone = False
        self.is_over = False
        self.is_stale = False
        self._errand = errand
        self._client = errand.client
        self._clock = errand.clock
        self._has_body = True
        self._splice: Splice | None = None
        self._feed = self._read_head
        self._buffer = b""
        self._is_paused = False
        self._started_at = self._heard_at = errand.clock()
        self._body: Body
        self._upstream: Upstream
        self._turn: asyncio.Future[None]

    @property
    def splice(self) -> Splice | None:
        """The body, once there is a head."""
        return self._splice

    async def run(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        """Until the reply has ended, one way or another. Cancelling is safe at any time."""
        loop = asyncio.get_running_loop()
        self._upstream = upstream
        limits = self._errand.limits
        look_s = min(limits.first_byte_timeout_s, limits.idle_timeout_s)
        upstream.begin(self, head, body, look_s)
        self._errand.listener.sent(self.replica)
        try:
            while not self.is_over:
                self._turn = loop.create_future()
                await self._turn
                if self._is_paused and not self.is_over:
                    await self._let_client_read()
        finally:
            upstream.leave()

    def received(self, data: bytes) -> None:
        client = self._client
        if client.is_gone():
            # a write would raise, and the engine works for nobody
            self._leave_client()
            return
        self._heard_at = self._clock()
        try:
            self._feed(data)
        except BadReply as exc:
            self._fail(ReplicaFailed(f"replica {self.replica.id}: {exc}"))
            return
        splice = self._splice
        if splice is not None and splice.is_whole:
            self._succeed()
        elif client.protocol.writing_paused and not self._is_paused:
            self._is_paused = True
            self._upstream.pause_reading()
            self._wake()

    def lost(self, error: Exception | None) -> None:
        if self.is_over:
            return
        if error is None and self._splice is not None and self._close_splice(self._splice):
            return
        if self.head is None:
            self.is_stale = not self._buffer and self._upstream.is_reused
            words = "closed the connection before it answered"
            self._fail(ReplicaUnreachable(f"replica {self.replica.id} {words}"))
        else:
            self._fail(ReplicaFailed(f"replica {self.replica.id} broke off in its reply"))

    def refused(self) -> None:
        """A vLLM that was told to stop closes its port and leaves its requests without a byte."""
        silence_s = self._clock() - self._heard_at
        if not self.is_over and not self._is_paused and silence_s >= REFUSED_SILENCE_S:
            words = "closed its port and says nothing more"
            self._fail(ReplicaUnreachable(f"replica {self.replica.id} {words}"))

    def open(self, length: int | None) -> None:
        assert self.head is not None
        ours = self._errand.listener.headers(self.replica)
        if not self._has_body:
            length = None if self.head.status == 204 else self.head.length
        self._client.open(self.head, ours, length, has_body=self._has_body)

    def first_byte(self, start: bytes) -> None:
        assert self.head is not None
        self.first_byte_at = self._clock()
        self._errand.listener.first_byte(self.replica, self.head.status, start)

    def first_byte_sent(self) -> None:
        assert self.head is not None
        self._errand.listener.first_byte_sent(self.replica, self.head.status)

    def _read_head(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._errand.heads.parse(self._buffer[: end + 2])
            self._buffer = self._buffer[end + 4 :]
            if head.status == 101:
                raise BadReply("switched protocols unasked")
            if head.status >= 200:
                self._begin_body(head)
                return
        too_long = len(self._buffer) > self._errand.limits.max_head_bytes
        if too_long or not looks_like_http(self._buffer):
            raise BadReply("sent no HTTP reply")

    def _begin_body(self, head: Head) -> None:
        rest, self._buffer = self._buffer, b""
        self.head = head
        self._has_body = head.has_body(self._errand.method)
        splice = self._choose_splice(head)
        self._splice = splice
        self._feed = splice.feed
        if rest or not self._has_body or head.length == 0:
            splice.feed(rest)

    def _choose_splice(self, head: Head) -> Splice:
        limits = self._errand.limits
        self._body = body = body_of(head) if self._has_body else FixedBody(0)
        if head.status in self._errand.refusals:
            return RefusalSplice(body, limits.held_bytes)
        if self._has_body and head.content_type == STREAM_TYPE and not head.is_encoded:
            return EventSplice(body, self._client, self, limits)
        holds = self._has_body and head.content_type == _JSON and not head.is_encoded
        return PlainSplice(
            head,
            body,
            self._client,
            self,
            held_bytes=limits.held_bytes if holds else 0,
            tail_bytes=limits.tail_bytes,
        )

    def _close_splice(self, splice: Splice) -> bool:
        try:
            is_whole = splice.close()
        except BadReply as exc:
            self._fail(ReplicaFailed(f"replica {self.replica.id}: {exc}"))
            return True
        if is_whole:
            self._succeed()
        return is_whole

    def _succeed(self) -> None:
        assert self.head is not None
        is_framed = self.head.is_chunked or self.head.length is not None
        self._upstream.is_clean = (
            self.head.keeps_alive
            and (is_framed or not self._has_body)
            and not self._body.has_excess
        )
        self._end()

    def _fail(self, error: RouterError) -> None:
        self.failure = error
        if self._client.is_open and self._splice is not None:
            self._splice.cut(self._errand.path, error)
        self._end()

    def _leave_client(self) -> None:
        self.is_client_gone = True
        self._client.abandon()
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._upstream.leave()
        self._wake()

    def _wake(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)

    async def _let_client_read(self) -> None:
        try:
            async with asyncio.timeout(self._errand.limits.client_stall_timeout_s):
                await self._client.drained()
        except (TimeoutError, ConnectionError):
            if not self.is_over:
                self._leave_client()
            return
        self._is_paused = False
        self._heard_at = self._clock()
        if not self.is_over:
            self._upstream.resume_reading()

    def look(self) -> float:
        """Look at the time now and then, rather than set a timer per event."""
        limits = self._errand.limits
        now = self._clock()
        if self._is_paused:
            self._heard_at = now
        if self._splice is not None and self._splice.has_begun:
            ends_at = self._heard_at + limits.idle_timeout_s
        else:
            ends_at = self._started_at + limits.first_byte_timeout_s
        if now >= ends_at:
            self._fail(ReplicaTimeout(f"replica {self.replica.id} sent nothing in time"))
        return min(ends_at - now, limits.idle_timeout_s)
