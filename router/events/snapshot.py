"""The index at one frame of each publisher, so that a router starts where another stands.

A snapshot is only a guess until the publisher has replayed the frame that it ends with: `follow`
asks for it, and begins anew if it is not the very same.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from router.index.copying import Copy
from router.index.dump import HoldingsDump, ShelfDump
from router.index.protocol import PrefixIndex
from router.replicas.replica import ReplicaId

FORMAT: Final = 1
_LONG: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD
_BIN_32: Final = 0xC6
_MAP_OF_FEW: Final = 0x80
_pack: Final = msgspec.msgpack.encode
BYTES_A_BLOCK: Final = 18
"""Of a snapshot: engine hash, block hash, depth."""


class IndexWithDumps(PrefixIndex, Protocol):
    """An index that can be copied."""

    def copy(self, replica_id: ReplicaId) -> Copy:
        """All that a replica holds, a piece at a time."""
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
    """A `Snapshot`, with turns for others between replicas. Of what is long nothing is copied but
    in a thread."""
    parts = [_map(2), _pack("replicas"), _LONG.pack(_ARRAY_32, len(replicas))]
    for one in replicas:
        parts += _fields(one, {"held": _held(one.held)})
        await asyncio.sleep(0)
    parts += [_pack("format"), _pack(FORMAT)]
    # it lets go of the interpreter's lock, and copies once
    return await asyncio.to_thread(b"".join, parts)


def _held(held: HoldingsDump) -> list[bytes]:
    shelves = [_LONG.pack(_ARRAY_32, len(held.shelves))]
    for shelf in held.shelves:
        shelves += _shelf(shelf)
    return _fields(held, {"shelves": shelves})


def _shelf(shelf: ShelfDump) -> list[bytes]:
    arrays = {"keys": shelf.keys, "blocks": shelf.blocks, "depths": shelf.depths}
    long = {name: [_LONG.pack(_BIN_32, len(raw)), raw] for name, raw in arrays.items()}
    return _fields(shelf, long)


def _fields(struct_: msgspec.Struct, packed: Mapping[str, list[bytes]]) -> list[bytes]:
    """As msgspec packs it, in parts; of some fields these are there already."""
    names = struct_.__struct_fields__
    parts = [_map(len(names))]
    for name in names:
        parts.append(_pack(name))
        parts += packed[name] if name in packed else [_pack(getattr(struct_, name))]
    return parts


def _map(fields: int) -> bytes:
    return bytes([_MAP_OF_FEW | fields])


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
