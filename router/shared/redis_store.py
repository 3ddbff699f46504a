"""Reports in Redis: one hash, one script, one round trip."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from router.shared.protocol import Exchange, Notes, StoreFailed, StoreState

VERSION: Final = "v1"
"""Part of every key. Reports can grow under one version; another meaning takes another."""

HANDSHAKES: Final = 8
"""Answers of Redis that a new connection waits for at most."""

LISTEN_S: Final = 1.0
"""A subscription's connection is looked at anew so often, by versions of redis-py that would take
silence for a failure else."""

_DENIED_WORDS: Final = ("NOAUTH", "NOPERM", "ACL failure", "user executing the script can't")
"""What a script's own commands are refused with has no class of error."""

# Fields of Redis 7's hashes have no time to live of their own: each value begins with the
# server's time, in ms, when it is void, in 14 digits.
_EXCHANGE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
local others, known = {}, 0
for i = 1, #all, 2 do
  if tonumber(string.sub(all[i + 1], 1, 14)) <= now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] == ARGV[1] then
    known = 1
  else
    others[#others + 1] = all[i]
    others[#others + 1] = string.sub(all[i + 1], 15)
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%014.0f', now + ARGV[3]) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3] * 2)
return {known, others}
"""


NOTES: Final = 2000
"""Notes that are kept, about."""
NOTES_AT_ONCE: Final = 200

_TRADE: Final = """
if ARGV[1] ~= '' then
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'n', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], '+', 'COUNT', ARGV[5])
"""


@dataclass(slots=True)
class RedisStore:
    """`client`: of `connect`. Keys are `{prefix}:v1:…`: braces keep them on one Cluster node."""

    client: Any
    prefix: str
    deadline_s: float
    _node: Any = None

    def key(self, *parts: str) -> str:
        return ":".join((f"{{{self.prefix}}}", VERSION, *parts))

    async def exchange(self, router_id: str, report: bytes, ttl_s: float) -> Exchange:
        values = (router_id, report, round(ttl_s * 1e3))
        known, flat = await self.run(_EXCHANGE, [self.key("routers")], *values)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return Exchange({name.decode("utf-8", "replace"): r for name, r in pairs}, bool(known))

    async def trade(self, note: bytes | None, since: str, ttl_s: float) -> Notes:
        values = (note or b"", since, round(ttl_s * 1e3), NOTES, NOTES_AT_ONCE)
        rows = await self.run(_TRADE, [self.key("moves")], *values)
        last = rows[-1][0].decode() if rows else since
        return Notes([fields[1] for _, fields in rows], last)

    async def publish(self, news: bytes) -> None:
        with heeding_cancel(), translated():
            async with asyncio.timeout(HANDSHAKES * self.deadline_s):
                await (await self._for_news()).publish(self.key("news"), news)

    async def listen(self, hear: Callable[[bytes], None], ready: Callable[[], None]) -> None:
        with heeding_cancel(), translated():
            listener = (await self._for_news()).pubsub()
            try:
                async with asyncio.timeout(HANDSHAKES * self.deadline_s):
                    await listener.subscribe(self.key("news"))
                    while (await _next(listener))["type"] != "subscribe":
                        continue
                ready()
                while True:
                    message = await _next(listener)
                    if message["type"] == "message":
                        hear(message["data"])
            finally:
                with suppress(Exception):  # it is gone, or goes
                    await listener.aclose()
                await self._forget_node()

    async def _for_news(self) -> Any:
        """Who publishes and listens: of a Cluster a client of the node that has our keys, until
        listening to it has failed."""
        if not hasattr(self.client, "get_node_from_key"):
            return self.client
        if self._node is None:
            from redis.asyncio import ConnectionPool, Redis

            await self.client.initialize()
            node = self.client.get_node_from_key(self.key("news"))
            pool = ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs)
            self._node = Redis.from_pool(pool)
        return self._node

    async def _forget_node(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            with suppress(Exception):  # it is gone, or goes
                await node.aclose()

    async def leave(self, router_id: str) -> None:
        script = "return redis.call('HDEL', KEYS[1], ARGV[1])"
        await self.run(script, [self.key("routers")], router_id)

    async def run(self, script: str, keys: list[str], *values: Any) -> Any:
        """A script's answer, or StoreFailed. The deadline is for each answer of Redis.

        A connection that is new asks some: who only waits for one would never have it.
        """
        with heeding_cancel(), translated():
            async with asyncio.timeout(HANDSHAKES * self.deadline_s):
                return await self.client.eval(script, len(keys), *keys, *values)

    async def get(self, key: str) -> bytes | None:
        """A value, however long; or StoreFailed."""
        with heeding_cancel(), translated():
            async with asyncio.timeout(HANDSHAKES * self.deadline_s):
                found: bytes | None = await self.client.get(key)
                return found

    async def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """A value for a time, or StoreFailed."""
        with heeding_cancel(), translated():
            async with asyncio.timeout(HANDSHAKES * self.deadline_s):
                await self.client.set(key, value, px=round(ttl_s * 1e3))

    async def aclose(self) -> None:
        await self._forget_node()
        with translated():
            await self.client.aclose()
            # a client by Sentinel leaves open what it asked the sentinels over
            manager = getattr(
                getattr(self.client, "connection_pool", None), "sentinel_manager", None
            )
            for sentinel in manager.sentinels if manager is not None else ():
                await sentinel.aclose()


async def _next(listener: Any) -> Any:
    """The next message of a subscription."""
    while (message := await listener.get_message(timeout=LISTEN_S)) is None:
        continue
    return message


@contextmanager
def heeding_cancel() -> Iterator[None]:
    """Whoever is cancelled inside ends here, whatever came of it.

    redis-py sends through `asyncio.wait_for`, which in Python 3.11 swallows a cancel that comes
    just when the sending is done: a task that exchanges for ever would then never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


@contextmanager
def translated() -> Iterator[None]:
    """Redis' and the network's errors, as StoreFailed."""
    from redis import exceptions as errors  # a fifth of a start's time: for those who use it

    try:
        yield
    except (errors.TimeoutError, TimeoutError) as exc:
        raise StoreFailed(StoreState.SLOW, "no answer in time") from exc
    except (errors.RedisError, errors.RedisClusterException, OSError) as exc:
        denied = (
            errors.AuthenticationError,
            errors.NoPermissionError,
            errors.AuthorizationError,
        )
        if isinstance(exc, denied):
            state = StoreState.DENIED
        elif isinstance(exc, errors.OutOfMemoryError):
            state = StoreState.FULL
        else:
            state = state_of_text(str(exc))
        raise StoreFailed(state, str(exc)) from exc


def state_of_text(error: str) -> StoreState:
    """What an error of a script's own command says, which has no class."""
    if any(words in error for words in _DENIED_WORDS):
        return StoreState.DENIED
    return StoreState.FULL if "OOM" in error or "maxmemory" in error else StoreState.DOWN
