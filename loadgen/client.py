"""Sends requests to an OpenAI-compatible server and stamps what comes back.

One connection pool without a limit: aiohttp's default of 100 connections would hold requests
back unseen. Large read buffers: with 64 KiB, long prompts slow the client before the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from loadgen.record import OK
from loadgen.reply import MESSAGE_CHARACTERS, Reply
from loadgen.workload.protocol import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_BUFFER_BYTES: Final = 10 * 1024 * 1024
KEEP_ALIVE_S: Final = 4.0
"""Below uvicorn's five seconds: else a connection can be closed just as we send on it."""

DRAIN_S: Final = 2.0
REPLICA_HEADER: Final = "x-warmgate-replica"

Clock = Callable[[], float]


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


class Client:
    """Thin on purpose: reads bytes, asks the clock, hands both to a `Reply`."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._url = target.url.rstrip("/") + target.path
        self._replica_header = target.replica_header
        self._headers = {
            "Content-Type": "application/json",
            # A compressing proxy would hold tokens back until a block is full.
            "Accept-Encoding": "identity",
            **target.headers,
        }
        self.target = target

    async def send(self, body: bytes, headers: Mapping[str, str]) -> Exchange:
        """Post and read to the end. Every way to fail is an outcome, not an exception."""
        exchange = Exchange(sent_at=self._clock(), reply=Reply())
        try:
            await self._exchange(exchange, body, {**self._headers, **headers})
        except aiohttp.ClientConnectorError as exc:
            _fail(exchange, "connect", exc)
        except TimeoutError as exc:
            _fail(exchange, "timeout", exc)
        except (aiohttp.ClientError, OSError) as exc:
            # What came after the end of the answer cannot unsay it.
            if not exchange.reply.is_done:
                _fail(exchange, "disconnect", exc)
        if not exchange.end_at:
            exchange.end_at = self._clock()
        if exchange.outcome == OK:
            self._judge(exchange)
        return exchange

    async def _exchange(self, exchange: Exchange, body: bytes, headers: dict[str, str]) -> None:
        async with self._session.post(self._url, data=body, headers=headers) as response:
            exchange.status = response.status
            exchange.replica = response.headers.get(self._replica_header)
            exchange.request_id = response.headers.get("x-request-id")
            if response.status != 200:
                text = await response.text(errors="replace")
                exchange.outcome, exchange.error = "http", text[:MESSAGE_CHARACTERS]
                return
            await self._read(exchange, response.content)

    async def _read(self, exchange: Exchange, content: aiohttp.StreamReader) -> None:
        clock, reply = self._clock, exchange.reply
        while data := await content.readany():
            reply.feed(clock(), data)
            if reply.is_done:
                break
        exchange.end_at = clock()
        if reply.is_done:
            await _drain(content)

    def _judge(self, exchange: Exchange) -> None:
        exchange.reply.close(exchange.end_at)
        failure = exchange.reply.failure()
        if failure is not None:
            exchange.outcome, exchange.error = failure


async def _drain(content: aiohttp.StreamReader) -> None:
    """Read what follows [DONE], so that the connection can be used again."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while await content.readany():
                pass
    except TimeoutError:
        return


def _fail(exchange: Exchange, outcome: str, exc: BaseException) -> None:
    exchange.outcome, exchange.error = outcome, f"{type(exc).__name__}: {exc}"[:MESSAGE_CHARACTERS]


@asynccontextmanager
async def open_client(target: Target, clock: Clock, timeout_s: float) -> AsyncIterator[Client]:
    """`timeout_s` bounds each request from sending to its last byte."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        read_bufsize=READ_BUFFER_BYTES,
        max_line_size=64 * 1024,
        max_field_size=64 * 1024,
    ) as session:
        yield Client(session, target, clock)
