"""Connections to engines: kept while idle, lent one exchange at a time, never capped."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.proxy.reply import Limits
from router.proxy.upstream import Upstream

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CLOSE_TIMEOUT_S = 1.0
_UNKNOWN_CA = "shows a certificate of a CA that forward.tls_ca does not hold"
_OTHER_NAME = "shows a certificate for another name"
# OpenSSL's X509_V_ERR_*
_CERTIFICATE_FAULTS = {
    9: "shows a certificate that is not valid yet",
    10: "shows a certificate that has expired",
    18: _UNKNOWN_CA,
    19: _UNKNOWN_CA,
    20: _UNKNOWN_CA,
    21: _UNKNOWN_CA,
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replica's URL points. `prefix`: its path; `authority`: the Host header."""

    host: str
    port: int
    is_tls: bool
    prefix: str
    authority: bytes


def parse_origin(url: str) -> Origin:
    """Raises ValueError for anything but an http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url}")
    return Origin(
        host=parts.hostname,
        port=parts.port or _DEFAULT_PORTS[parts.scheme],
        is_tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
        authority=parts.netloc.rpartition("@")[2].encode(),
    )


def why_unreachable(error: OSError) -> str:
    """What a client may know of a connection that failed: no addresses, no names of hosts."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _CERTIFICATE_FAULTS.get(error.verify_code, "shows a certificate that is not valid")
    if isinstance(error, ssl.SSLError):
        return "speaks no TLS that we understand"
    return "can't be reached"


class Pool:
    """Idle connections by replica URL, the most recently used first."""

    def __init__(
        self, limits: Limits, clock: Callable[[], float], ssl_context: ssl.SSLContext | None
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._ssl_context = ssl_context
        self._origins: dict[str, Origin] = {}
        self._idle: dict[str, list[Upstream]] = {}
        self._open: set[Upstream] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._all_lost = asyncio.Event()

    @property
    def open_connections(self) -> int:
        """Busy and idle."""
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return sum(len(stack) for stack in self._idle.values())

    def origin(self, url: str) -> Origin:
        """`parse_origin`, remembered."""
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = parse_origin(url)
        return origin

    def take(self, url: str) -> Upstream | None:
        """An idle connection that looks alive."""
        stack = self._idle.get(url)
        while stack:
            upstream = stack.pop()
            if upstream.is_usable:
                upstream.is_reused = True
                return upstream
            upstream.abort()
        return None

    async def connect(self, url: str) -> Upstream:
        """A new connection. Raises OSError (also for certificates and for the time limit)."""
        if self._is_closed:
            raise ConnectionAbortedError("the pool is closed")
        origin = self.origin(url)
        async with asyncio.timeout(self._limits.connect_timeout_s):
            _, upstream = await asyncio.get_running_loop().create_connection(
                lambda: Upstream(url, self._lost),
                origin.host,
                origin.port,
                ssl=self._context() if origin.is_tls else None,
            )
        self._open.add(upstream)
        return upstream

    def give_back(self, upstream: Upstream) -> None:
        """End of an exchange: kept if clean, closed at once if not."""
        stack = self._idle.setdefault(upstream.url, [])
        if not upstream.is_usable or len(stack) >= self._limits.max_idle_connections:
            upstream.abort()
            return
        upstream.idle_since = self._clock()
        stack.append(upstream)
        if self._sweep_timer is None:
            self._sweep_later()

    def refused(self, url: str) -> None:
        """The engine's port is closed: replies that have fallen silent are given up."""
        for upstream in tuple(self._open):
            if upstream.url == url:
                upstream.refused()

    async def aclose(self) -> None:
        """Close every connection, busy or not, and open no more."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._idle.clear()
        self._all_lost.clear()
        for upstream in tuple(self._open):
            upstream.abort()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._all_lost.wait()

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context

    def _lost(self, upstream: Upstream) -> None:
        self._open.discard(upstream)
        stack = self._idle.get(upstream.url)
        if stack is not None and upstream in stack:
            stack.remove(upstream)
        if not stack:
            self._idle.pop(upstream.url, None)
        if not self._open:
            self._all_lost.set()

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._limits.max_idle_s / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        oldest = self._clock() - self._limits.max_idle_s
        for stack in self._idle.values():
            for upstream in stack:
                if upstream.idle_since <= oldest:
                    upstream.is_clean = False
                    upstream.abort()
        if any(self._idle.values()):
            self._sweep_later()
