"""What a router will tell the central index soon, in as few words as it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.central import wire
from router.central.wire import Hit
from router.replicas import ReplicaId


@dataclass(slots=True)
class Unsaid:
    """Frames in order. Of hits that came out as predicted, which nearly all do, only one of each
    replica, with how many more there were; a hit that fell short keeps its place among them."""

    _frames: list[bytes] = field(default_factory=list)
    _hits: dict[ReplicaId, Hit] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._frames or self._hits)

    def add(self, data: bytes) -> None:
        """A frame."""
        self._frames.append(data)

    def add_hit(self, hit: Hit) -> None:
        """What was predicted, and what came of it."""
        if hit.hit_tokens < hit.predicted_tokens:
            self._close()
            self._frames.append(wire.hit(hit))
            return
        before = self._hits.get(hit.replica_id)
        if before is not None and before.more < wire.MOST_HITS:
            before.more += 1
            before.age_s = max(before.age_s, hit.age_s)
            return
        if before is not None:
            self._close()
        self._hits[hit.replica_id] = hit

    def take(self) -> bytes:
        """All of it; nothing is unsaid then."""
        self._close()
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _close(self) -> None:
        hits, self._hits = self._hits, {}
        self._frames += [wire.hit(one) for one in hits.values()]
