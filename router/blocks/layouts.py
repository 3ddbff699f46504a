"""Batches as nearly all engines lay them out, read straight into events.

Types are checked while bytes are read, and token ids never become objects. What has any other
layout is not read here: that is left to whoever takes everything (`wire`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgpack
import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType

from router.blocks import numbers
from router.blocks.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    EventBatch,
)
from router.blocks.hashing import HASH_CODE, TYPE_CODE, Hashes
from router.compiled import is_compiled

_MANY: Final = 48
"""From so many ids on, compiled code is faster than making an object of each, if there is any."""
_ARRAY_16: Final = 0xDC
_ARRAY_32: Final = 0xDD
_ONE_ID: Final = array(TYPE_CODE, [0])
_ONE_HASH: Final = array(HASH_CODE, [0])
_HASH: Final = np.dtype(np.uint64)
_ID: Final = np.dtype(np.uint32)
_BYTE: Final = np.dtype(np.uint8)
_FLOAT_64: Final = 0xCB
_FIRST_EVENT_AT: Final = 10
"""Behind the array's head and the time, as a float of 8 bytes."""
_HEADS: Final = {_ARRAY_16: 3, _ARRAY_32: 5, 0xDE: 3, 0xDF: 5}
"""Bytes of the head of a list or a map, where it is not one."""
_WIDTHS: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
"""Bytes of a number, where it is not one."""
_NIL_BYTE: Final = b"\xc0"
_NIL: Final = Raw(_NIL_BYTE)
_IN_ARRAYS: Final = (msgpack.packb("BlockStored"), b"", b"")
_IN_MAPS: Final = (
    b"".join(map(msgpack.packb, ("type", "BlockStored", "block_hashes"))),
    msgpack.packb("parent_block_hash"),
    msgpack.packb("token_ids"),
)
"""What stands before the hashes, the parent and the ids of an event, as engines lay it out."""


class _Stored(Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: Raw
    parent_block_hash: EngineHash | None
    token_ids: Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[Any] | None = None
    cache_salt: None = None
    """SGLang's: if there is one it is not read here."""


class _StoredArray(_Stored, tag="BlockStored", array_like=True, gc=False):
    more: UnsetType = UNSET
    """Behind what is known there may be SGLang's salt."""


class _RemovedArray(Struct, tag_field="type", tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: tuple[EngineHash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    more: UnsetType = UNSET


class _ClearedArray(Struct, tag_field="type", tag="AllBlocksCleared", array_like=True, gc=False):
    more: UnsetType = UNSET


class _Maps(Struct, array_like=True, gc=False):
    ts: float
    events: list[_Stored | BlockRemoved | AllBlocksCleared]
    rank: Any = None


class _Arrays(Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: Any = None


_maps: Final = msgspec.msgpack.Decoder(_Maps)
_arrays: Final = msgspec.msgpack.Decoder(_Arrays)
_hashes: Final = msgspec.msgpack.Decoder(tuple[EngineHash, ...])


def read_batch(payload: bytes) -> EventBatch | None:
    """A batch; None: it is laid out in another way, or it is none."""
    decoder = _arrays if _has_arrays(payload) else _maps
    try:
        if (cut := _cut(payload)) is None:
            batch: _Arrays | _Maps = decoder.decode(payload)
            return EventBatch(batch.ts, tuple([_event(each) for each in batch.events]), batch.rank)
        rest, hashes, ids = cut
        batch = decoder.decode(rest)
        first, *others = batch.events
        if not (isinstance(first, _Stored) and first.block_hashes == first.token_ids == _NIL):
            return None  # it says one of them twice
        events = (_stored(first, hashes, ids), *[_event(each) for each in others])
        return EventBatch(batch.ts, events, batch.rank)
    except (ValueError, RecursionError):
        return None


def _cut(payload: bytes) -> tuple[bytes, Hashes, array[int]] | None:
    """A batch with nil for what its first event lists, and the lists: its hashes and its ids.

    msgspec has to pass over every id to find what follows; here that is done by reading it. None:
    the first event does not list many of both, or is not laid out as engines do.
    """
    at = _FIRST_EVENT_AT
    if not is_compiled(numbers.unpack) or len(payload) <= at + _MANY or payload[1] != _FLOAT_64:
        return None
    at += _HEADS.get(payload[at], 1)
    tag, key_of_parent, key_of_ids = _IN_ARRAYS if _is_array(payload[at]) else _IN_MAPS
    at += _HEADS.get(payload[at], 1)
    hashes_at = at + len(tag)
    if not payload.startswith(tag, at):
        return None
    count, at = _head(payload, hashes_at)
    if not _MANY <= count < len(payload):
        return None
    data, hashes = np.frombuffer(payload, _BYTE), _ONE_HASH * count
    hashes_end = numbers.unpack_words(data, at, np.frombuffer(hashes, _HASH))
    if hashes_end < 0 or not payload.startswith(key_of_parent, hashes_end):
        return None
    at = hashes_end + len(key_of_parent)
    at += _WIDTHS.get(payload[at], 1) if at < len(payload) else 0
    ids_at = at + len(key_of_ids)
    if not payload.startswith(key_of_ids, at):
        return None
    count, at = _head(payload, ids_at)
    if not _MANY <= count < len(payload):
        return None
    ids = _ONE_ID * count
    ids_end = numbers.unpack(data, at, np.frombuffer(ids, _ID), 0, count)
    if ids_end < 0:
        return None
    kept = payload[:hashes_at], payload[hashes_end:ids_at], payload[ids_end:]
    return _NIL_BYTE.join(kept), hashes, ids


def as_ids(values: Any) -> Any:
    """A list of token ids as an array; anything else as it is."""
    if type(values) is not list:
        return values
    try:
        return array(TYPE_CODE, values)
    except (TypeError, OverflowError):
        return values


def read_hashes(raw: Raw | bytes) -> Sequence[EngineHash]:
    """An engine's hashes, from a packed list. ValueError: there is something else."""
    view = memoryview(raw)
    count, at = _head(view, 0)
    if _MANY <= count < len(view) and is_compiled(numbers.unpack_words):
        words = _ONE_HASH * count
        cells = np.frombuffer(words, _HASH)
        if numbers.unpack_words(np.frombuffer(view, _BYTE), at, cells) == len(view):
            return words
    return _hashes.decode(view)


def read_ids(raw: Raw | bytes) -> Sequence[int]:
    """The ids of a packed list. Something else, if it holds something else."""
    view = memoryview(raw)
    count, at = _head(view, 0)
    if _MANY <= count < len(view) and is_compiled(numbers.unpack):
        ids = _ONE_ID * count
        cells = np.frombuffer(ids, _ID)
        if numbers.unpack(np.frombuffer(view, _BYTE), at, cells, 0, count) == len(view):
            return ids
    found: Sequence[int] = as_ids(msgpack.unpackb(view, strict_map_key=False))
    return found


def _head(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """How many values a long list has, and where they begin; 0: it is short, or none."""
    kind = data[at] if at < len(data) else 0
    if kind == _ARRAY_16:
        return int.from_bytes(data[at + 1 : at + 3], "big"), at + 3
    return (int.from_bytes(data[at + 1 : at + 5], "big"), at + 5) if kind == _ARRAY_32 else (0, at)


def _has_arrays(payload: bytes) -> bool:
    """Whether the first event is an array."""
    at = _FIRST_EVENT_AT
    if len(payload) <= at:
        return False
    kind = payload[at]
    at += _HEADS.get(kind, 1)
    return at < len(payload) and _is_array(payload[at])


def _is_array(kind: int) -> bool:
    return kind & 0xF0 == 0x90 or kind in (_ARRAY_16, _ARRAY_32)


def _event(read: Any) -> Event:
    kind = type(read)
    if kind is BlockRemoved or kind is AllBlocksCleared:
        event: Event = read
        return event
    if kind is _RemovedArray:
        return BlockRemoved(
            read.block_hashes, read.medium, read.group_idx, read.locality, read.ownership
        )
    if kind is _ClearedArray:
        return AllBlocksCleared()
    return _stored(read, read_hashes(read.block_hashes), read_ids(read.token_ids))


def _stored(read: _Stored, hashes: Sequence[EngineHash], ids: Sequence[int]) -> BlockStored:
    return BlockStored(
        hashes,
        read.parent_block_hash,
        ids,
        read.block_size,
        read.lora_id,
        read.medium,
        read.lora_name,
        read.extra_keys,
        read.group_idx,
        read.kv_cache_spec_kind,
        read.kv_cache_spec_sliding_window,
        read.locality,
        read.ownership,
        read.session_id,
        read.lookahead_token_ids,
    )
