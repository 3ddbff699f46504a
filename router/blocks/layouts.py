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
from router.blocks.hashing import HASH_CODE, TYPE_CODE
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
_FIRST_EVENT_AT: Final = 10
"""Behind the array's head and the time, as a float of 8 bytes."""


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
    try:
        if _has_arrays(payload):
            batch: _Arrays | _Maps = _arrays.decode(payload)
        else:
            batch = _maps.decode(payload)
        return EventBatch(batch.ts, tuple([_event(each) for each in batch.events]), batch.rank)
    except (ValueError, RecursionError):
        return None


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
    count, at = _head(view)
    if _MANY <= count < len(view) and is_compiled(numbers.unpack_words):
        words = _ONE_HASH * count
        cells = np.frombuffer(words, _HASH)
        if numbers.unpack_words(np.frombuffer(view, _BYTE), at, cells) == len(view):
            return words
    return _hashes.decode(view)


def read_ids(raw: Raw | bytes) -> Sequence[int]:
    """The ids of a packed list. Something else, if it holds something else."""
    view = memoryview(raw)
    count, at = _head(view)
    if _MANY <= count < len(view) and is_compiled(numbers.unpack):
        ids = _ONE_ID * count
        cells = np.frombuffer(ids, _ID)
        if numbers.unpack(np.frombuffer(view, _BYTE), at, cells, 0, count) == len(view):
            return ids
    found: Sequence[int] = as_ids(msgpack.unpackb(view, strict_map_key=False))
    return found


def _head(view: memoryview) -> tuple[int, int]:
    """How many values a long list has, and where they begin; 0: it is short, or none."""
    kind = view[0]
    if kind == _ARRAY_16:
        return int.from_bytes(view[1:3], "big"), 3
    return (int.from_bytes(view[1:5], "big"), 5) if kind == _ARRAY_32 else (0, 0)


def _has_arrays(payload: bytes) -> bool:
    """Whether the first event is an array."""
    at = _FIRST_EVENT_AT
    if len(payload) <= at:
        return False
    kind = payload[at]
    at += 3 if kind == _ARRAY_16 else 5 if kind == _ARRAY_32 else 1
    return at < len(payload) and (payload[at] & 0xF0 == 0x90 or payload[at] in (0xDC, 0xDD))


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
    return BlockStored(
        read_hashes(read.block_hashes),
        read.parent_block_hash,
        read_ids(read.token_ids),
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
