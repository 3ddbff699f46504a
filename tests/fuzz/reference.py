"""What a strict reader makes of the same bytes: aiohttp's parser, alone."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from router.gateway.limits import EdgeLimits

REFUSAL = b"can be read in one way only"
"""In the words of a reply to what is no request."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`heads`: requests whose head is good, before the first fault; `is_refused`: there is one.

    `is_unsure`: nothing can be said of what follows one of them: it is no HTTP, or the parser
    waits for somebody to read what a compressed body expands to.
    """

    heads: int
    is_refused: bool = False
    is_unsure: bool = False

    def disagreement(self, raw: bytes) -> str | None:
        """What a listener that said `raw` has read differently, None if nothing."""
        if self.is_unsure:
            return None
        raw = _until_closed(raw)
        oks = raw.count(b"HTTP/1.1 200 ") + raw.count(b"HTTP/1.0 200 ")
        refusals = raw.count(REFUSAL)
        if refusals and not self.is_refused:
            return "refuses what the reference takes"
        if oks > self.heads:
            return f"takes {oks} requests, the reference {self.heads}"
        if refusals > 1:
            return "goes on after a refusal"
        if refusals and raw.rpartition(REFUSAL)[2].count(b"HTTP/1."):
            return "answers what follows a refusal"
        if raw and self.is_refused and not self.heads and not refusals and b" 408 " not in raw:
            return "answers what the reference refuses"
        return None


def _until_closed(raw: bytes) -> bytes:
    """Up to the reply that says it is the last. What is said of the rest of its body is noise."""
    lower = raw.lower()
    closes_at = lower.find(b"\r\nconnection: close\r\n")
    again = lower.find(b"http/1.", closes_at) if closes_at >= 0 else -1
    return raw if again < 0 else raw[:again]


def judge(data: bytes) -> Verdict:
    """Of one connection's bytes, however they are cut."""
    try:
        messages, is_tunnel, _ = _parser().feed_data(data)
    except HttpProcessingError:
        return Verdict(_heads_before_the_fault(data), is_refused=True)
    waits = any(message.compression and not body.is_eof() for message, body in messages[-1:])
    return Verdict(len(messages), is_unsure=is_tunnel or waits)


def messages_of(data: bytes) -> list[tuple[RawRequestMessage, bytes | None]]:
    """Requests before the first fault, each with its body if it is whole."""
    try:
        found = list(_parser().feed_data(data)[0])
    except HttpProcessingError:
        parser = _parser()
        found = []
        with contextlib.suppress(HttpProcessingError):
            for at in range(len(data)):
                found += parser.feed_data(data[at : at + 1])[0]
    return [(message, _whole(body)) for message, body in found]


def _whole(body: StreamReader) -> bytes | None:
    if not body.is_eof() or body.exception() is not None:
        return None
    return b"".join(getattr(body, "_buffer", ()))


def _heads_before_the_fault(data: bytes) -> int:
    parser, heads = _parser(), 0
    for at in range(len(data)):
        try:
            heads += len(parser.feed_data(data[at : at + 1])[0])
        except HttpProcessingError:
            break
    return heads


def _parser() -> HttpRequestParser:
    limits, loop = EdgeLimits(), asyncio.get_running_loop()
    return HttpRequestParser(
        BaseProtocol(loop),
        loop,
        2**16,
        max_line_size=limits.max_head_bytes,
        max_field_size=limits.max_head_bytes,
        max_headers=limits.max_headers,
    )
