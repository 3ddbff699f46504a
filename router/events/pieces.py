"""Events cut, or joined, to what the index takes in about a millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from router.blocks import BlockRemoved, BlockStored, EngineHash, Event

PIECE_BLOCKS: Final = 512


def in_pieces(events: Iterable[Event | None]) -> Iterator[Event | None]:
    """The same events: long ones cut, removals that follow one another joined, because engines
    send one per block. None (an event loop's turn) is handed on."""
    for (kind, *where), alike in groupby(events, _kind_and_place):
        if kind is BlockRemoved:
            yield from _removals(where, alike)
            continue
        for event in alike:
            if isinstance(event, BlockStored) and len(event.block_hashes) > PIECE_BLOCKS:
                yield from _cut(event)
            else:
                yield event


def _cut(event: BlockStored) -> Iterator[BlockStored]:
    """Each piece is the parent of the next. What doesn't fit together is left as it is."""
    handles, tokens, size = event.block_hashes, event.token_ids, event.block_size
    if size < 1 or len(tokens) != len(handles) * size:
        yield event
        return
    parent = event.parent_block_hash
    for start in range(0, len(handles), PIECE_BLOCKS):
        end = start + PIECE_BLOCKS
        keys = event.extra_keys
        yield replace(
            event,
            block_hashes=handles[start:end],
            parent_block_hash=parent,
            token_ids=tokens[start * size : end * size],
            extra_keys=keys[start:end] if keys is not None else None,
        )
        parent = handles[min(end, len(handles)) - 1]


def _removals(where: list[Any], alike: Iterable[Event | None]) -> Iterator[BlockRemoved]:
    medium, group_idx, locality = where
    waiting: list[EngineHash] = []
    for event in alike:
        if isinstance(event, BlockRemoved):
            waiting += event.block_hashes
        while len(waiting) >= PIECE_BLOCKS:
            piece = tuple(waiting[:PIECE_BLOCKS])
            del waiting[:PIECE_BLOCKS]
            yield BlockRemoved(piece, medium, group_idx, locality)
    if waiting:
        yield BlockRemoved(tuple(waiting), medium, group_idx, locality)


def _kind_and_place(event: Event | None) -> tuple[Any, ...]:
    if isinstance(event, BlockRemoved):
        return BlockRemoved, event.medium, event.group_idx, event.locality
    return (type(event),)
