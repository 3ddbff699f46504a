"""What routers and the central index say to each other: frames, and what is in them.

A frame is its length (what follows it, 4 bytes), its kind (1 byte) and a body; numbers are little
endian. Kinds that one doesn't know are skipped, and fields are only ever appended, so versions N
and N+1 understand each other; `VERSION` changes when that is not enough.
"""

from __future__ import annotations

import hmac
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from struct import Struct, error
from typing import Final

import msgspec

from router.blocks import BlockHash, Hashes
from router.blocks.hashing import HASH_CODE
from router.central.memory import Place
from router.events import IngestCounters, Trust
from router.index.tiers import Load
from router.replicas import ReplicaId

VERSION: Final = 1
MAGIC: Final = b"WGIX"
NONCE_BYTES: Final = 32
MAX_BYTES: Final = 64 * 2**20
"""Of one frame. A prompt of a million tokens is half a megabyte of hashes."""
MOST_HITS: Final = 1000
"""That one frame tells of."""
STRANGER_BYTES: Final = 1024
"""Of one frame of somebody who has not shown yet that it may ask."""

_HEAD: Final = Struct("<IB")
_HELLO: Final = Struct(f"<4sH{NONCE_BYTES}s")
_ASK: Final = Struct("<IH")
_SERVED: Final = Struct("<HqI")
_COUNT: Final = Struct("<I")


class Kind(IntEnum):
    """Of a frame. HELLO, WELCOME, ANSWER, STATE, MEMORY are the index's; the others a router's."""

    HELLO = 1
    JOIN = 2
    WELCOME = 3
    ASK = 4
    ANSWER = 5
    STATE = 6
    SERVED = 7
    HIT = 8
    SUSPECT = 9
    REUSED = 10
    MEMORY = 11


class BadFrame(ConnectionError):
    """The other end says what makes no sense: the connection is of no use."""


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """What the index knows of one replica beside its blocks.

    `wants_prompts`: it publishes nothing, so whoever sends it a prompt should say so (SERVED).
    `number`: what it is called in the index's memory; -1: nothing.
    """

    replica_id: ReplicaId
    trust: Trust
    reason: str
    epoch: int
    blocks: int
    block_sizes: list[int]
    is_learning: bool
    wants_prompts: bool
    restored: int
    counters: IngestCounters
    number: int = -1


class StateNews(msgspec.Struct, frozen=True, array_like=True):
    """Replicas that are new or have changed, and those that are gone. Empty: nothing new."""

    changed: list[ReplicaState] = []
    gone: list[ReplicaId] = []


class Hit(msgspec.Struct, array_like=True):
    """What was predicted of a replica, at most `age_s` ago, and what it reported, in tokens.

    `more`: so many further prompts that came out as this one, none of them older.
    """

    replica_id: ReplicaId
    predicted_tokens: int
    hit_tokens: int
    age_s: float = 0.0
    more: int = 0


class Found(msgspec.Struct, frozen=True, array_like=True):
    """About one prompt; see `index.answers.Answer`."""

    matches: dict[ReplicaId, int]
    loads: dict[ReplicaId, tuple[Load, ...]] = {}


_encoder: Final = msgspec.msgpack.Encoder()
_founds: Final = msgspec.msgpack.Decoder(list[Found])
_news: Final = msgspec.msgpack.Decoder(StateNews)
_hit: Final = msgspec.msgpack.Decoder(Hit)
_place: Final = msgspec.msgpack.Decoder(Place)


@dataclass(slots=True)
class Splitter:
    """Frames out of a stream, however it was cut."""

    max_bytes: int
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and body of each whole frame. BadFrame: one that is too long."""
        whole = bytes(self._rest) + data if self._rest else data
        self._rest.clear()
        at, end = 0, len(whole)
        while end - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(whole, at)
            if not 1 <= length <= self.max_bytes:
                raise BadFrame(f"a frame of {length} bytes")
            after = at + length + _HEAD.size - 1
            if after > end:
                break
            yield kind, whole[at + _HEAD.size : after]
            at = after
        self._rest += whole[at:]


def frame(kind: Kind, body: bytes) -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


def hello(nonce: bytes) -> bytes:
    return frame(Kind.HELLO, _HELLO.pack(MAGIC, VERSION, nonce))


def read_hello(body: bytes) -> bytes:
    """The nonce to be signed. BadFrame: no index, or one of another version."""
    if len(body) < _HELLO.size:
        raise BadFrame("no central index")
    magic, version, nonce = _HELLO.unpack_from(body)
    if magic != MAGIC:
        raise BadFrame("no central index")
    if version != VERSION:
        raise BadFrame(f"the central index speaks version {version}, this router {VERSION}")
    return bytes(nonce)


def join(token: bytes, nonce: bytes, own_nonce: bytes) -> bytes:
    """A router's answer to `hello`: it knows the secret, and wants to hear that they do."""
    return frame(Kind.JOIN, proof(token, b"router", nonce) + own_nonce)


def proof(token: bytes, who: bytes, nonce: bytes) -> bytes:
    """Only who knows the secret can make it, and it is of use only once."""
    return hmac.digest(token, who + nonce, sha256)


def ask(number: int, prefixes: Sequence[Sequence[BlockHash]]) -> bytes:
    """A question about some prompts."""
    parts = [_ASK.pack(number, len(prefixes))]
    for prefix in prefixes:
        parts += [_COUNT.pack(len(prefix)), _raw(prefix)]
    return frame(Kind.ASK, b"".join(parts))


def read_ask(body: bytes) -> tuple[int, list[Hashes]]:
    """BadFrame."""
    try:
        number, count = _ASK.unpack_from(body)
        at, prefixes = _ASK.size, []
        for _ in range(count):
            (length,) = _COUNT.unpack_from(body, at)
            at += _COUNT.size
            prefixes.append(_hashes(body[at : at + 8 * length], length))
            at += 8 * length
    except error as exc:
        raise BadFrame(f"no question: {exc}") from exc
    return number, prefixes


def answer(number: int, found: Sequence[Found]) -> bytes:
    return frame(Kind.ANSWER, _COUNT.pack(number) + _encoder.encode(found))


def read_answer(body: bytes) -> tuple[int, list[Found]]:
    """BadFrame."""
    try:
        (number,) = _COUNT.unpack_from(body)
        return number, _founds.decode(memoryview(body)[_COUNT.size :])
    except (error, msgspec.DecodeError) as exc:
        raise BadFrame(f"no answer: {exc}") from exc


def news(state: StateNews) -> bytes:
    return frame(Kind.STATE, _encoder.encode(state))


def read_news(body: bytes) -> StateNews:
    """BadFrame."""
    try:
        return _news.decode(body)
    except msgspec.DecodeError as exc:
        raise BadFrame(f"no state: {exc}") from exc


def memory(place: Place) -> bytes:
    """For routers of the same host: the index may be read there."""
    return frame(Kind.MEMORY, _encoder.encode(place))


def read_memory(body: bytes) -> Place:
    """BadFrame."""
    try:
        return _place.decode(body)
    except msgspec.DecodeError as exc:
        raise BadFrame(f"no place: {exc}") from exc


def hit(report: Hit) -> bytes:
    return frame(Kind.HIT, _encoder.encode(report))


def read_hit(body: bytes) -> Hit:
    """BadFrame."""
    try:
        return _hit.decode(body)
    except msgspec.DecodeError as exc:
        raise BadFrame(f"no hit: {exc}") from exc


def served(replica_id: ReplicaId, prefix: Sequence[BlockHash], hit_tokens: int | None) -> bytes:
    """A replica computed this prompt; -1 stands for None."""
    name = replica_id.encode()
    tokens = -1 if hit_tokens is None else hit_tokens
    return frame(Kind.SERVED, _SERVED.pack(len(name), tokens, len(prefix)) + name + _raw(prefix))


def read_served(body: bytes) -> tuple[ReplicaId, Hashes, int | None]:
    """BadFrame."""
    try:
        length, tokens, blocks = _SERVED.unpack_from(body)
        at = _SERVED.size + length
        name = body[_SERVED.size : at].decode()
        return name, _hashes(body[at:], blocks), None if tokens < 0 else tokens
    except (error, UnicodeDecodeError) as exc:
        raise BadFrame(f"no report: {exc}") from exc


def _raw(prefix: Sequence[BlockHash]) -> bytes:
    hashes = array(HASH_CODE, prefix)
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes.tobytes()


def _hashes(raw: bytes, count: int) -> Hashes:
    if len(raw) != 8 * count:
        raise BadFrame(f"{len(raw)} bytes for {count} blocks")
    hashes = array(HASH_CODE, raw)
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes
