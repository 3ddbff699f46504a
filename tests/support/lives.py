"""What an engine's cache held after each frame, so that a follower can be judged at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest


@dataclass(slots=True)
class Life:
    """One life of an engine, from its start to its death; frames have numbers from 0.

    `hidden`: numbers of frames that nobody got, or can ask for. `cleared`: the newest frame that
    could be had and said that all blocks are gone.
    """

    number: int = 0
    digests: list[int] = field(default_factory=list)
    held: list[frozenset[int]] = field(default_factory=list)
    published_s: list[float] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    cleared: int = -1
    died_s: float | None = None

    def __len__(self) -> int:
        return len(self.held)

    def publish(self, payload: bytes, held: frozenset[int], now_s: float) -> None:
        self.digests.append(xxh3_64_intdigest(payload))
        self.held.append(held)
        self.published_s.append(now_s)

    def held_at(self, seq: int) -> frozenset[int]:
        return self.held[seq] if seq >= 0 else frozenset()

    def hides_all_after(self, seq: int) -> bool:
        """Can nobody know that anything came after frame `seq`?"""
        return all(later in self.hidden for later in range(seq + 1, len(self)))


Position = tuple[int, int]
"""Number and digest of the last frame that a follower took."""


def place(lives: Sequence[Life], position: Position | None) -> tuple[Life, int] | None:
    """The life, and the frame in it, at which a follower stands; before any: the newest life's
    beginning. None: nobody has published such a frame."""
    if position is None:
        return lives[-1], -1
    seq, digest = position
    for life in reversed(lives):
        if seq < len(life) and life.digests[seq] == digest:
            return life, seq
    return None


def differs(life: Life, seq: int, known: set[int]) -> str:
    """Empty if just what the cache held after that frame is known."""
    real = life.held_at(seq)
    if real == known:
        return ""
    unknown, gone = len(real - known), len(known - real)
    return f"at frame {seq} of life {life.number}: {unknown} unknown, {gone} gone"
