"""What processes of a host note for each other, in memory that they share: where something is.

A key (a stored response, a session), the replica where it is, and until when that holds. Each
process has a shelf that only it writes; it outlives the process, for what was noted stays true.
Every entry has a checksum, so one that is read while it is written is not found, never wrong.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from router.index.siblings import Noted
from router.replicas import ReplicaId

WAYS: Final = 8
"""Entries that a key may be in; when all are taken, the one goes that would end first."""
_ENTRY: Final = Struct("<16sQdQ")
"""Key, replica, until when, checksum of these."""
_BODY: Final = Struct("<16sQd")
_BUCKET: Final = WAYS * _ENTRY.size


class NoteBoard:
    """One process' view. `slot`: its own; `entries`: about how many notes each process has room
    for; `ids`: the replicas of now. Times are CLOCK_MONOTONIC: one for all processes.
    """

    def __init__(
        self,
        path: Path,
        slot: int,
        processes: int,
        entries: int,
        ids: Callable[[], Iterable[ReplicaId]],
    ) -> None:
        self._buckets = 1 << max(0, (entries - 1) // WAYS).bit_length()
        self._shelf = self._buckets * _BUCKET
        size = processes * self._shelf
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size < size:
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, size)
        self._own = slot * self._shelf
        self._ids = ids
        self._names: dict[int, ReplicaId] = {}

    def put(self, key: str, replica_id: ReplicaId, until: float) -> None:
        """It is there until then."""
        digest = _digest(key)
        start = self._own + self._place(digest)
        best, earliest = start, float("inf")
        for at in range(start, start + _BUCKET, _ENTRY.size):
            found, _, ends, _ = _ENTRY.unpack_from(self._memory, at)
            if found == digest:
                best = at
                break
            if ends < earliest:
                best, earliest = at, ends
        body = _BODY.pack(digest, xxh3_64_intdigest(replica_id.encode()), until)
        check = xxh3_64_intdigest(body).to_bytes(8, "little")
        self._memory[best : best + _ENTRY.size] = body + check

    def get(self, key: str) -> Noted | None:
        """What was noted last, by whichever process, and until when it holds."""
        digest = _digest(key)
        place, last = self._place(digest), None
        for start in range(place, len(self._memory), self._shelf):
            bucket = self._memory[start : start + _BUCKET]
            at = bucket.find(digest)
            if at < 0 or at % _ENTRY.size:
                continue
            entry = bucket[at : at + _ENTRY.size]
            _, number, until, check = _ENTRY.unpack(entry)
            is_whole = check == xxh3_64_intdigest(entry[: _BODY.size])
            if is_whole and (last is None or until > last[1]):
                last = number, until
        if last is None or (replica_id := self._name(last[0])) is None:
            return None
        return replica_id, last[1]

    def close(self) -> None:
        with suppress(BufferError):
            self._memory.close()
        os.close(self._file)

    def _place(self, digest: bytes) -> int:
        return (int.from_bytes(digest[:8], "little") % self._buckets) * _BUCKET

    def _name(self, number: int) -> ReplicaId | None:
        """None: a replica that is not there (any more)."""
        if number not in self._names:
            self._names = {xxh3_64_intdigest(one.encode()): one for one in self._ids()}
        return self._names.get(number)


def _digest(key: str) -> bytes:
    return xxh3_128_digest(key.encode("utf-8", "surrogatepass"))
