"""Frames applied to the index: their events one by one, with turns for others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from router.blocks import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    Frame,
    MalformedFrame,
)
from router.blocks.steps import EventReader
from router.events.pieces import in_pieces
from router.events.standing import IngestCounters, Standing
from router.events.trust import ReplicaTrust
from router.index import PrefixIndex
from router.replicas.replica import ReplicaId

FRAME_COST_BLOCKS: Final = 64
"""Receiving and decoding an almost empty frame takes as long as so many blocks."""

_EVENT_COST_BLOCKS: Final = 64
"""Beside its blocks, an event's reading and storing takes as long as so many of a long one,"""
_JOINED_COST_BLOCKS: Final = 24
"""and as long as so many if it is stored with many others."""


TURNS: Final = 2
"""Between two steps others get so many turns of the loop: a request is read in one and sent on in
the next, and with one alone it would wait for a step in each."""


async def _let_others() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Applier:
    """Of one replica's frames."""

    replica_id: ReplicaId
    index: PrefixIndex
    standing: Standing
    counters: IngestCounters
    trust: ReplicaTrust
    _spent: int = 0

    async def apply(self, frame: Frame) -> None:
        """All of a frame. MalformedFrame, perhaps after some events."""
        self.standing.is_midway = True
        self.counters.frames += 1
        reader = EventReader(frame.payload)
        await self.pace(FRAME_COST_BLOCKS)
        for piece in in_pieces(self._counted(reader)):
            if piece is None:
                await _let_others()
                continue
            try:
                cost = self._apply_piece(piece)
            except (TypeError, ValueError, LookupError, AttributeError) as exc:
                raise MalformedFrame(f"frame {frame.seq}: a field of a wrong type: {exc}") from exc
            await self.pace(cost)
        self.counters.unknown_events += reader.unknown_events
        self.standing.is_midway = False

    def _counted(self, events: Iterable[Event | None]) -> Iterator[Event | None]:
        counters = self.counters
        for event in events:
            counters.events += event is not None
            yield event

    async def pace(self, blocks: int) -> None:
        """So much has been done; others get a turn when it is enough."""
        self._spent += blocks
        if self._spent >= self.standing.slice_blocks:
            self._spent = 0
            await _let_others()

    def forget(self) -> None:
        """What is known of it may be gone."""
        self.index.clear(self.replica_id)
        self.trust.note_forgotten()

    def clear(self) -> None:
        """Its cache is empty now, whatever happened before."""
        self.forget()
        self.standing.trust_all()

    def _apply_piece(self, piece: Event | Sequence[BlockStored]) -> int:
        """Returns about how many blocks of a long event take as long."""
        if isinstance(piece, AllBlocksCleared):
            self.clear()
            return 1
        if isinstance(piece, BlockStored):
            self.index.store(self.replica_id, piece)
        elif isinstance(piece, BlockRemoved):
            self.index.remove(self.replica_id, piece)
        else:
            self.index.store_all(self.replica_id, piece)
            return _JOINED_COST_BLOCKS * len(piece)
        return _EVENT_COST_BLOCKS + len(piece.block_hashes)
