"""A stand-in engine as fast as Python gets: what it costs is subtracted by asking it directly."""

import argparse
import asyncio
import functools
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop
import zmq.asyncio

from router.blocks import BlockStored, EventBatch, Frame, encode_batch
from router.blocks.wire import encode_frame

BLOCK_SIZE = 16
PUBLISH_EVERY_S = 2.0
PUBLISH_ALL_FOR_S = 30.0

_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_EVENTS = re.compile(rb'"max_(?:completion_)?tokens": ?([0-9]+)')
# how long its prompt is: the load knows, this stand-in can't
_SEED = re.compile(rb'"seed": ?([0-9]+)')
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[],"usage":{"prompt_tokens":500,"total_tokens":550,"completion_tokens":50}}\n\n'
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"word " * 360 + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":500,"total_tokens":550,"completion_tokens":50}}'
)


def _json(body: bytes) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


@functools.cache
def _reply(prompt_tokens: bytes) -> bytes:
    return _json(_ANSWER.replace(b'"prompt_tokens":500', b'"prompt_tokens":' + prompt_tokens))


# what a whole gateway asks besides, of the engine that it takes this for
_ASIDES = {
    b"GET /v1/models ": _json(b'{"object":"list","data":[{"id":"m","max_model_len":8192}]}'),
    b"GET /health ": _json(b""),
    b"POST /tokenize ": _json(b'{"count":500,"tokens":[%b]}' % b",".join([b"7"] * 500)),
}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_EVENT_CHUNK = _chunk(_EVENT)


@functools.cache
def _end(prompt_tokens: bytes) -> bytes:
    usage = _USAGE.replace(b'"prompt_tokens":500', b'"prompt_tokens":' + prompt_tokens)
    return _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _prompt_tokens(body: bytes) -> bytes:
    """A gateway stops trusting its tokenizer when its counts are not the engine's."""
    told = _SEED.search(body)
    return told[1] if told else b"500"


class Backend(asyncio.Protocol):
    """Streams `max_tokens` events, one write each, or answers with 2 KB of JSON."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport
        self._stream: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (at := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, at)
            end = at + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < end:
                return
            head, body = self._buffer[:at], self._buffer[at + 4 : end]
            self._buffer = self._buffer[end:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST /v1/"):
            asides = (reply for line, reply in _ASIDES.items() if head.startswith(line))
            self._transport.write(next(asides, _json(b"{}")))
        elif b'"stream":true' in body:
            events = _EVENTS.search(body)
            count = int(events[1]) if events else 50
            self._stream = asyncio.get_running_loop().create_task(self._play(count, body))
        else:
            self._transport.write(_reply(_prompt_tokens(body)))

    async def _play(self, count: int, body: bytes) -> None:
        write = self._transport.write
        write(_STREAM_HEAD)
        for _ in range(count):
            write(_EVENT_CHUNK)
            await asyncio.sleep(0)
        write(_end(_prompt_tokens(body)))


async def publish(address: str, prompts: list[list[int]]) -> None:
    """Tell that the prompts' blocks are held, as an engine's KV events would: each block once, but
    again and again at first, for there is no replay; then now and then of another block."""
    context = zmq.asyncio.Context()
    told = tuple(stored_of(prompts))
    with context.socket(zmq.PUB) as socket:
        socket.bind(address)
        for sequence in itertools.count():
            is_start = sequence * PUBLISH_EVERY_S < PUBLISH_ALL_FOR_S
            events = told if is_start else (_one_more(sequence),)
            payload = encode_batch(EventBatch(ts=float(sequence), events=events))
            await socket.send_multipart(encode_frame(Frame(sequence, payload)))
            await asyncio.sleep(PUBLISH_EVERY_S)


def stored_of(prompts: list[list[int]]) -> Iterator[BlockStored]:
    """What is new with each prompt: what it shares with an earlier one is its parent."""
    known: dict[tuple[int | None, tuple[int, ...]], int] = {}
    for tokens in prompts:
        parent: int | None = None
        hashes: list[int] = []
        new: list[int] = []
        for at in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            block = tuple(tokens[at : at + BLOCK_SIZE])
            above = hashes[-1] if hashes else parent
            if (above, block) in known:
                parent = known[above, block]
                continue
            hashes.append(len(known) + 1)
            known[above, block] = hashes[-1]
            new += block
        if hashes:
            yield BlockStored(tuple(hashes), parent, new, BLOCK_SIZE)


def _one_more(sequence: int) -> BlockStored:
    return BlockStored((2**40 + sequence,), None, [sequence] * BLOCK_SIZE, BLOCK_SIZE)


async def serve(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(Backend, "127.0.0.1", port, backlog=2048)
        for port in arguments.port
    ]
    if arguments.events is not None:
        await publish(arguments.events, json.loads(arguments.tokens.read_text()))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, nargs="+")
    parser.add_argument("--events", help="ZeroMQ endpoint to publish KV events at")
    parser.add_argument("--tokens", type=Path, help="JSON: a list of prompts' token ids")
    uvloop.run(serve(parser.parse_args()))
