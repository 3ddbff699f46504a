"""The index at one frame of each publisher, so that a router starts where another stands.

A snapshot is only a guess until the publisher has replayed the frame that it ends with: `follow`
asks for it, and begins anew if it is not the very same.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

import msgspec

from router.index.dump import HoldingsDump
from router.index.protocol import PrefixIndex
from router.replicas.replica import ReplicaId

FORMAT: Final = 1
_MAP_OF_TWO: Final = b"\x82"
_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD
BYTES_A_BLOCK: Final = 18
"""Of a snapshot: engine hash, block hash, depth."""


class IndexWithDumps(PrefixIndex, Protocol):
    """An index that can be copied."""

    def dump(self, replica_id: ReplicaId) -> HoldingsDump:
        """All that a replica holds."""
        ...

    def replicas(self) -> dict[ReplicaId, int]:
        """How many blocks each holds."""
        ...

    def load(self, replica_id: ReplicaId, dump: HoldingsDump) -> None:
        """Make a replica hold just this."""
        ...


class ReplicaSnapshot(msgspec.Struct, frozen=True):
    """What one replica held after frame `seq`; `digest`: XXH3-64 of that frame's payload.

    `doubt`: what its router did not know of the past, `known_from` and `must_relearn`: see
    `Standing`.
    """

    replica_id: ReplicaId
    seq: int
    digest: int
    held: HoldingsDump
    doubt: str = ""
    known_from: int = 0
    must_relearn: bool = False


class Snapshot(msgspec.Struct, frozen=True):
    """Of all replicas that could be copied."""

    replicas: list[ReplicaSnapshot]
    format: int = FORMAT


class UnreadableSnapshot(Exception):
    """These bytes are no snapshot of this format."""


async def encode_in_turns(replicas: Collection[ReplicaSnapshot]) -> bytes:
    """A `Snapshot`, with turns for others between replicas: of megabytes each takes a while."""
    pack = msgspec.msgpack.encode
    parts = [_MAP_OF_TWO, pack("replicas"), _ARRAY.pack(_ARRAY_32, len(replicas))]
    for one in replicas:
        parts.append(pack(one))
        await asyncio.sleep(0)
    parts += [pack("format"), pack(FORMAT)]
    # in a thread, for it lets go of the interpreter's lock, and copies once
    return await asyncio.to_thread(b"".join, parts)


def decode_snapshot(raw: bytes) -> dict[ReplicaId, ReplicaSnapshot]:
    """By replica. UnreadableSnapshot."""
    try:
        snapshot = msgspec.msgpack.decode(raw, type=Snapshot)
    except msgspec.DecodeError as exc:
        raise UnreadableSnapshot(str(exc)) from exc
    if snapshot.format != FORMAT:
        raise UnreadableSnapshot(f"format {snapshot.format}, known is {FORMAT}")
    return {each.replica_id: each for each in snapshot.replicas}


def write_snapshot(path: Path, raw: bytes) -> None:
    """Replace the file in one step: a router that dies meanwhile leaves the old one. OSError."""
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(raw)
    os.replace(fresh, path)
