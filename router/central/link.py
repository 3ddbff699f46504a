"""A router's connection to the central index: questions there, answers and news back."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeAlias, cast

from router.blocks import BlockHash
from router.central import wire
from router.central.memory import Place
from router.central.wire import BadFrame, Found, Kind, StateNews

SILENCE_S: Final = 2.0
"""An index that says nothing for so long is gone: it speaks every half second."""
UNSENT_BYTES: Final = 2**20
"""What waits for an index that does not read, before nothing is asked any more."""

Reply: TypeAlias = "list[Found] | None"
"""None: not in time."""


class Link(asyncio.Protocol):
    """One connection, from hello to its end.

    `lost` ends with it, and says why. `joined` is done when questions may be asked.
    """

    def __init__(
        self,
        token: bytes,
        on_news: Callable[[StateNews], None],
        on_memory: Callable[[Place], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.joined: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.heard_at = loop.time()
        self.is_writable = True
        self._token, self._on_news, self._loop = token, on_news, loop
        self._on_memory = on_memory
        self._nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._frames = wire.Splitter(wire.MAX_BYTES)
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._transport: asyncio.Transport | None = None

    @property
    def waiting(self) -> int:
        """Questions without an answer."""
        return len(self._waiting)

    def ask(
        self, prefixes: Sequence[Sequence[BlockHash]], deadline_s: float
    ) -> asyncio.Future[Reply]:
        """Put a question. The answer is None if there is none in time."""
        number = next(self._numbers) & 0xFFFFFFFF
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[number] = answer
        self.send(wire.ask(number, prefixes))
        timer = self._loop.call_later(deadline_s, self._answer, number, None)
        answer.add_done_callback(lambda _: timer.cancel())
        return answer

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, why: str) -> None:
        """Give it up."""
        if not self.lost.done():
            self.lost.set_result(why)
        if self._transport is not None:
            self._transport.abort()
        for number in list(self._waiting):
            self._answer(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc) if exc is not None else "it closed the connection")

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for kind, body in self._frames.feed(data):
                self._take(kind, body)
        except BadFrame as exc:
            self.close(str(exc))

    def _take(self, kind: int, body: bytes) -> None:
        if kind == Kind.ANSWER:
            number, found = wire.read_answer(body)
            self._answer(number, found)
        elif kind == Kind.STATE:
            self._on_news(wire.read_news(body))
        elif kind == Kind.MEMORY:
            self._on_memory(wire.read_memory(body))
        elif kind == Kind.HELLO:
            self.send(wire.join(self._token, wire.read_hello(body), self._nonce))
        elif kind == Kind.WELCOME:
            expected = wire.proof(self._token, b"index", self._nonce)
            if not hmac.compare_digest(body[: len(expected)], expected):
                raise BadFrame("the central index does not know our token")
            if not self.joined.done():
                self.joined.set_result(None)

    def _answer(self, number: int, found: Reply) -> None:
        """An answer came, or its time is over. What comes after that is of no use."""
        answer = self._waiting.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(found)
