"""Events cut, or joined, to what the index takes in about a millisecond."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from router.blocks import BlockRemoved, BlockStored, EngineHash, Event

PIECE_BLOCKS: Final = 512
MOST_JOINED: Final = 256
"""Of events with a block each so many are joined: to read them takes longer than to store them."""
FEW: Final = 4

Piece: TypeAlias = Event | Sequence[BlockStored] | None
"""Many events are alike but for a block, its ids and its parent: see `PrefixIndex.store_all`."""


def in_pieces(events: Iterable[Event | None]) -> Iterator[Piece]:
    """The same events: long ones cut, short ones that follow one another joined, because engines
    send one per block. None (an event loop's turn) is handed on."""
    for (kind, *where), alike in groupby(events, _kind_and_place):
        if kind is BlockRemoved:
            yield from _removals(where, alike)
        elif kind is BlockStored:
            yield from _stores(alike)
        else:
            yield from alike


def _stores(alike: Iterable[Any]) -> Iterator[Piece]:
    run: list[BlockStored] = []
    for event in _in_chains(alike):
        if _is_single(event):
            run.append(event)
            if len(run) == MOST_JOINED:
                yield run
                run = []
            continue
        yield from _run(run)
        run = []
        if len(event.block_hashes) > PIECE_BLOCKS:
            yield from _cut(event)
        else:
            yield event
    yield from _run(run)


def _run(events: Sequence[BlockStored]) -> Iterator[Piece]:
    if len(events) < FEW:
        yield from events
    else:
        yield events


def _in_chains(events: Iterable[BlockStored]) -> Iterator[BlockStored]:
    """Events, each with the next ones if those are of a block each and go on from it."""
    chain: list[BlockStored] = []
    for event in events:
        if chain:
            above = chain[-1].block_hashes
            if (
                len(chain) < MOST_JOINED
                and above
                and event.parent_block_hash == above[-1]
                and _is_single(event)
                and _fits(chain[0])
            ):
                chain.append(event)
                continue
            yield _joined(chain)
        chain = [event]
    if chain:
        yield _joined(chain)


def _joined(chain: Sequence[BlockStored]) -> BlockStored:
    first, *others = chain
    if not others:
        return first
    tokens = first.token_ids[:]
    assert isinstance(tokens, array)
    handles = [*first.block_hashes]
    for event in others:
        tokens.extend(event.token_ids)
        handles += event.block_hashes
    return replace(first, block_hashes=handles, token_ids=tokens)


def _is_single(event: BlockStored) -> bool:
    """Whether it tells of one block that follows another, and of nothing in it but its tokens."""
    is_one = len(event.block_hashes) == 1 and event.parent_block_hash is not None
    return is_one and not event.extra_keys and _fits(event)


def _fits(event: BlockStored) -> bool:
    tokens, size = event.token_ids, event.block_size
    if type(tokens) is not array or type(size) is not int:
        return False
    return len(tokens) == len(event.block_hashes) * size > 0


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
    if isinstance(event, BlockStored):
        kind = event.kv_cache_spec_kind
        return BlockStored, event.medium, event.group_idx, event.locality, kind, event.block_size
    return (type(event),)
