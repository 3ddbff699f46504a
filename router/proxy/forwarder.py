"""Carry a request to a replica and its reply back; try the next one while no byte has come."""

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Sequence

from router.errors import (
    OWN_SHORTAGES,
    NoReplicaAvailable,
    ReplicaTimeout,
    ReplicaUnreachable,
    RouterError,
    RouterOverloaded,
)
from router.proxy.asked import Asked
from router.proxy.client import Client
from router.proxy.exchange import Errand, Exchange
from router.proxy.head import Heads
from router.proxy.headers import API_KEYS, SentHeads, ended, rank_header, request_head
from router.proxy.pool import Pool, why_unreachable
from router.proxy.refusal import NOT_FOUND, REFUSALS, RefusalSplice, refusal_of
from router.proxy.reply import Limits, Listener, Outcome, Reply
from router.proxy.upstream import Upstream
from router.replicas.replica import Replica


class Forwarder:
    """Owns the connections to all replicas. Lives as long as the process."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
        *,
        keeps_keys: bool = True,
    ) -> None:
        """`keeps_keys`: whether replicas see the clients' API keys."""
        self._limits = limits
        self._dropped = frozenset() if keeps_keys else API_KEYS
        self._clock = clock
        self._pool = Pool(limits, clock, ssl_context)
        self._heads = Heads()

    @property
    def pool(self) -> Pool:
        """For gauges."""
        return self._pool

    async def forward(
        self,
        request: Asked,
        body: bytes,
        replicas: Sequence[Replica],
        listener: Listener,
        added: Sequence[tuple[bytes, bytes]] = (),
        sent_heads: SentHeads | None = None,
    ) -> Reply:
        """Write the reply of the first replica that gives one to the request's client.

        `replicas`: first choice first; `added`: headers that replicas get in place of the client's;
        `sent_heads`: kept by whoever knows that the head is the one of an earlier request.

        Raises the last replica's error when none answered: then nothing was sent. A replica that
        is only slow is not given up for another (that would double the load just when there is
        too much): ReplicaTimeout is raised at once. CancelledError, when the client left, has
        closed the engine's connection.
        """
        sent_heads = {} if sent_heads is None else sent_heads
        errand = self._errand(request, listener, added, sent_heads)
        return await self._go(errand, request, body, replicas)

    async def ask_around(
        self,
        request: Asked,
        body: bytes,
        replicas: Sequence[Replica],
        listener: Listener,
        added: Sequence[tuple[bytes, bytes]] = (),
    ) -> Reply:
        """As `forward`, but a replica that answers 404 is not the one that is looked for."""
        errand = self._errand(request, listener, added, {}, REFUSALS | {NOT_FOUND})
        return await self._go(errand, request, body, replicas)

    def _errand(
        self,
        request: Asked,
        listener: Listener,
        added: Sequence[tuple[bytes, bytes]],
        sent_heads: SentHeads,
        refusals: Collection[int] = REFUSALS,
    ) -> Errand:
        return Errand(
            client=Client(request, self._limits.high_water_bytes),
            method=request.method,
            path=request.path,
            listener=listener,
            added=added,
            sent_heads=sent_heads,
            limits=self._limits,
            clock=self._clock,
            heads=self._heads,
            refusals=refusals,
        )

    async def _go(
        self, errand: Errand, request: Asked, body: bytes, replicas: Sequence[Replica]
    ) -> Reply:
        listener = errand.listener
        failure: RouterError | None = None
        refused: Exchange | None = None
        for replica in _distinct(replicas)[: self._limits.max_tries]:
            errand.tries += 1
            listener.trying(replica)
            try:
                exchange = await self._try(errand, request, body, replica)
            except RouterOverloaded:
                raise
            except RouterError as error:
                listener.failed(replica, error)
                failure = error
                if isinstance(error, ReplicaTimeout):
                    break
                continue
            refusal = _refusal(exchange)
            if refusal is None:
                return await self._report(errand, exchange)
            listener.failed(replica, refusal)
            refused = exchange
        if refused is None or isinstance(failure, ReplicaTimeout):
            raise failure or NoReplicaAvailable("no replica to forward to")
        _relay_refusal(errand, refused)
        return await self._report(errand, refused)

    async def aclose(self) -> None:
        """Close all connections; exchanges under way end as if the engines had died."""
        await self._pool.aclose()

    async def _try(self, errand: Errand, request: Asked, body: bytes, replica: Replica) -> Exchange:
        """One replica. Raises its error if the client has got nothing of it."""
        where = replica.url, replica.rank
        head = None if errand.added else errand.sent_heads.get(where)
        if head is None:
            head = errand.sent_heads[where] = self._head(errand, request, replica)
        head = ended(head, errand.method, len(body))
        exchange = Exchange(errand, replica)
        upstream = self._pool.take(replica.url)
        if upstream is not None:
            await self._run(exchange, upstream, head, body)
            if not exchange.is_stale:
                return _unless_failed(exchange, errand.client)
            # the engine closed it while we wrote: it has seen nothing of the request
            exchange = Exchange(errand, replica)
        try:
            upstream = await self._pool.connect(replica.url)
        except OSError as exc:
            if exc.errno in OWN_SHORTAGES:
                message = "The router has too many connections. Try again shortly."
                raise RouterOverloaded(message, retry_after_s=1.0) from exc
            raise ReplicaUnreachable(f"replica {replica.id} {why_unreachable(exc)}") from exc
        await self._run(exchange, upstream, head, body)
        return _unless_failed(exchange, errand.client)

    def _head(self, errand: Errand, request: Asked, replica: Replica) -> bytes:
        origin = self._pool.origin(replica.url)
        rank = () if replica.rank is None else (rank_header(replica.rank),)
        return request_head(
            request,
            target=(origin.prefix + request.path_qs).encode(),
            host=origin.authority,
            added=(*errand.added, *rank),
            dropped=self._dropped,
        )

    async def _run(self, exchange: Exchange, upstream: Upstream, head: bytes, body: bytes) -> None:
        try:
            await exchange.run(upstream, head, body)
        finally:
            self._pool.give_back(upstream)

    async def _report(self, errand: Errand, exchange: Exchange) -> Reply:
        assert exchange.head is not None
        assert exchange.splice is not None
        client = errand.client
        if client.is_full and not client.is_gone():
            await self._last_drain(exchange, client)
        is_error = exchange.head.status >= 400 or exchange.splice.holds_error()
        return Reply(
            replica=exchange.replica,
            status=exchange.head.status,
            outcome=_outcome(exchange, is_error=is_error),
            tries=errand.tries,
            bytes_sent=client.bytes_sent,
            first_byte_at=exchange.first_byte_at,
            ended_at=self._clock(),
            usage=exchange.splice.usage(),
            keeps_alive=client.keeps_alive,
            blames_replica=_blames_replica(exchange, is_error=is_error),
        )

    async def _last_drain(self, exchange: Exchange, client: Client) -> None:
        try:
            async with asyncio.timeout(self._limits.client_stall_timeout_s):
                await client.drained()
        except (TimeoutError, ConnectionError):
            client.abandon()
            exchange.is_client_gone = True


def _distinct(replicas: Sequence[Replica]) -> list[Replica]:
    return list({replica.id: replica for replica in replicas}.values())


def _unless_failed(exchange: Exchange, client: Client) -> Exchange:
    if exchange.failure is not None and not client.is_open:
        raise exchange.failure
    if exchange.is_client_gone and not client.is_open:
        # what aiohttp does to a handler whose client has left
        raise asyncio.CancelledError
    return exchange


def _refusal(exchange: Exchange) -> RouterError | None:
    if exchange.is_client_gone:
        return None
    return refusal_of(exchange.replica.id, exchange.head, exchange.splice)


def _relay_refusal(errand: Errand, exchange: Exchange) -> None:
    """No other replica would answer either: the client gets the refusal and its Retry-After."""
    assert isinstance(exchange.splice, RefusalSplice)
    body = bytes(exchange.splice.held)
    exchange.open(len(body))
    errand.client.send(body)
    errand.client.end()


def _blames_replica(exchange: Exchange, *, is_error: bool) -> bool:
    """Died after the first byte, an error event, or a 5xx that is not for a client's fault."""
    assert exchange.head is not None
    assert exchange.splice is not None
    if exchange.is_client_gone or isinstance(exchange.splice, RefusalSplice):
        return False
    if exchange.failure is not None:
        return True
    status = exchange.head.status
    if status >= 500:
        return not exchange.splice.blames_client()
    return status < 400 and is_error


def _outcome(exchange: Exchange, *, is_error: bool) -> Outcome:
    if exchange.is_client_gone:
        return Outcome.CLIENT_GONE
    if exchange.failure is not None:
        return Outcome.CUT_SHORT
    return Outcome.REPLICA_ERROR if is_error else Outcome.OK
