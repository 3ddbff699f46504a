"""Sends requests to an OpenAI-compatible server and stamps what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from loadgen.connection import Clock, Disconnected, Pool, open_pool
from loadgen.http import Origin, ProtocolError
from loadgen.record import OK
from loadgen.reply import MESSAGE_CHARACTERS, Reply
from loadgen.workload.protocol import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REPLICA_HEADER: Final = "x-warmgate-replica"
__all__ = ["Client", "Clock", "Exchange", "Target", "open_client"]


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what every request to it says.

    `endpoint`: "chat" or "completions". `extra` goes into every body, e.g. {"ignore_eos": true}.
    `usage_per_chunk` asks for vLLM's running token counts. `replica_header` names the header that
    tells which replica answered.
    """

    url: str
    model: str
    endpoint: str = "chat"
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    usage_per_chunk: bool = False
    replica_header: str = REPLICA_HEADER

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"

    def body(self, messages: Sequence[Message], max_tokens: int) -> bytes:
        """The request as JSON bytes, made before the clock starts."""
        options: dict[str, bool] = {"include_usage": True}
        if self.usage_per_chunk:
            options["continuous_usage_stats"] = True
        fields: dict[str, object] = {"model": self.model}
        if self.endpoint == "chat":
            fields["messages"] = messages
        else:
            fields["prompt"] = as_prompt(messages)
        fields |= {"max_tokens": max_tokens, "temperature": 0, "stream": True}
        return msgspec.json.encode(fields | {"stream_options": options} | dict(self.extra))


def as_prompt(messages: Sequence[Message]) -> str:
    """A conversation as plain text, for servers without a chat template; it only ever grows."""
    return "\n\n".join(message.content for message in messages)


@dataclass(slots=True)
class Exchange:
    """One request's fate. Times are the client's clock."""

    sent_at: float
    reply: Reply
    end_at: float = 0.0
    outcome: str = OK
    error: str = ""
    status: int | None = None
    replica: str | None = None
    request_id: str | None = None


class _Reading:
    """Hands a response to a `Reply`, or keeps the beginning of a refusal."""

    def __init__(self, exchange: Exchange, replica_header: str) -> None:
        self._exchange = exchange
        self._reply = exchange.reply
        self._replica_header = replica_header.lower()
        self._is_ok = False
        self.refusal = b""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        exchange = self._exchange
        exchange.status = status
        exchange.replica = headers.get(self._replica_header)
        exchange.request_id = headers.get("x-request-id")
        self._is_ok = status == 200

    def body(self, at: float, data: bytes) -> bool:
        if not self._is_ok:
            self.refusal = (self.refusal + data)[:MESSAGE_CHARACTERS]
            return False
        self._reply.feed(at, data)
        if self._reply.is_done:
            self._exchange.end_at = at
            return True
        return False


class Client:
    """Thin on purpose: a pool of connections, and what every request says."""

    def __init__(self, pool: Pool, target: Target, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            # A compressing proxy would hold tokens back until a block is full.
            "Accept-Encoding": "identity",
            "User-Agent": "warmgate-load",
            **target.headers,
        }
        self.target = target

    async def send(self, body: bytes, headers: Mapping[str, str]) -> Exchange:
        """Post and read to the end. Every way to fail is an outcome, not an exception."""
        clock = self._pool.clock
        exchange = Exchange(sent_at=clock(), reply=Reply())
        reading = _Reading(exchange, self.target.replica_header)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._pool.post(self.target.path, {**self._headers, **headers}, body, reading)
        except TimeoutError:
            _fail(exchange, "timeout", f"no end after {self._timeout_s:g} s")
        except Disconnected as exc:
            _fail(exchange, "disconnect", str(exc))
        except ProtocolError as exc:
            _fail(exchange, "broken", str(exc))
        except OSError as exc:
            _fail(exchange, "connect", f"{type(exc).__name__}: {exc}")
        if not exchange.end_at:
            exchange.end_at = clock()
        if exchange.outcome == OK:
            _judge(exchange, reading.refusal)
        return exchange


def _judge(exchange: Exchange, refusal: bytes) -> None:
    if exchange.status != 200:
        _fail(exchange, "http", refusal.decode("utf-8", "replace"))
        return
    exchange.reply.close(exchange.end_at)
    failure = exchange.reply.failure()
    if failure is not None:
        _fail(exchange, *failure)


def _fail(exchange: Exchange, outcome: str, message: str) -> None:
    exchange.outcome, exchange.error = outcome, message[:MESSAGE_CHARACTERS]


@asynccontextmanager
async def open_client(target: Target, clock: Clock, timeout_s: float) -> AsyncIterator[Client]:
    """`timeout_s` bounds each request from sending to its last byte."""
    async with open_pool(Origin(target.url), clock) as pool:
        yield Client(pool, target, timeout_s)
