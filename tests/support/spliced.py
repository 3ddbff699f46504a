"""An exchange without sockets: bytes in by hand, bytes out in a list."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import HttpVersion, HttpVersion11, web
from multidict import CIMultiDict

from router.errors import RouterError
from router.proxy.client import Client
from router.proxy.exchange import Errand, Exchange
from router.proxy.head import Heads
from router.proxy.headers import Ours, ours_of
from router.proxy.reply import Limits
from router.proxy.upstream import Upstream
from router.replicas.replica import Replica
from tests.support.raw_http import PATH

QUICK = Limits(connect_timeout_s=1.0, first_byte_timeout_s=5.0, idle_timeout_s=5.0)


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.is_aborted = False
        self.is_reading = True  # type: ignore[assignment,method-assign]

    def write(self, data: Any) -> None:
        self.written += data
        self.writes += 1

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.is_reading = False  # type: ignore[assignment,method-assign]

    def resume_reading(self) -> None:
        self.is_reading = True  # type: ignore[assignment,method-assign]


@dataclass
class FakeProtocol:
    writing_paused: bool = False


@dataclass
class FakeRequest:
    """As much of a request as the data path reads."""

    method: str = "POST"
    path: str = PATH
    version: HttpVersion = HttpVersion11
    keep_alive: bool = True
    raw_headers: tuple[tuple[bytes, bytes], ...] = ()
    transport: FakeTransport = field(default_factory=FakeTransport)
    protocol: FakeProtocol = field(default_factory=FakeProtocol)

    @property
    def headers(self) -> CIMultiDict[str]:
        return CIMultiDict((k.decode("latin-1"), v.decode("latin-1")) for k, v in self.raw_headers)

    def as_request(self) -> web.BaseRequest:
        return cast(web.BaseRequest, self)


@dataclass
class Notes:
    """A Listener that remembers."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    errors: list[RouterError] = field(default_factory=list)

    def trying(self, replica: Replica) -> None:
        self.calls.append(("trying", replica.id))

    def sent(self, replica: Replica) -> None:
        """What went out is looked at where it comes in."""

    def failed(self, replica: Replica, error: RouterError) -> None:
        self.calls.append(("failed", replica.id))
        self.errors.append(error)

    def headers(self, replica: Replica) -> Ours:
        return ours_of([("x-warmgate-replica", replica.id), ("x-request-id", "ours")])

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        self.calls.append(("first_byte", replica.id))

    def first_byte_sent(self, replica: Replica, status: int) -> None:
        """It is looked at where it comes in."""


@dataclass
class Spliced:
    """What became of a reply that was fed piece by piece."""

    exchange: Exchange
    request: FakeRequest
    engine: FakeTransport
    notes: Notes

    @property
    def sent(self) -> bytes:
        return bytes(self.request.transport.written)


async def splice(
    pieces: Sequence[bytes],
    request: FakeRequest | None = None,
    limits: Limits = QUICK,
    *,
    then_lost: bool = False,
    notes: Notes | None = None,
) -> Spliced:
    """Feed an engine's bytes to an exchange in the given pieces; `then_lost`: it closes after."""
    request = request or FakeRequest()
    notes = notes or Notes()
    errand = Errand(
        client=Client(request.as_request(), limits.high_water_bytes),
        method=request.method,
        path=request.path,
        listener=notes,
        limits=limits,
        clock=time.monotonic,
        heads=Heads(),
        sent_heads={},
    )
    exchange = Exchange(errand, Replica("r1", "http://engine"))
    upstream = Upstream("http://engine", lambda _: None)
    engine = FakeTransport()
    upstream.connection_made(engine)
    run = asyncio.create_task(exchange.run(upstream, b"", b""))
    await asyncio.sleep(0)
    for piece in pieces:
        if exchange.is_over:
            break
        upstream.data_received(piece)
    if then_lost and not exchange.is_over:
        upstream.connection_lost(None)
    if not exchange.is_over:
        run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    return Spliced(exchange, request, engine, notes)
