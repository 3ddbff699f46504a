"""msgpack's integers into an array, compiled: a list of a million token ids takes no million
objects."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.compiled import Cells, called, entry, integer

Bytes: TypeAlias = NDArray[np.uint8]

FAILED: Final = integer(-1)
_WIDEST: Final = integer(5)
_LENGTHS: Final[NDArray[np.uint8]] = np.zeros(256, np.uint8)
"""How many bytes a number takes whose first byte this is, where most are written so; else 0."""
_LENGTHS[0x00:0x80] = 1
_LENGTHS[0xCC:0xCF] = 2, 3, 5
_SHIFT: Final = np.uint64(8)


@called
def rare(data: Bytes, at: int, out: Cells, number: int) -> int:
    """One number, however it is written. Returns where it ends."""
    end, first = len(data), integer(data[at])
    if first < 0x80:
        out[number] = first
        return at + 1
    if not 0xCC <= first <= 0xD3:
        return FAILED
    width = 1 << (first & 3)  # 0xCC to 0xCF are unsigned, of 1, 2, 4, 8 bytes; 0xD0 on are signed
    if at + width >= end:
        return FAILED
    if first >= 0xD0 and data[at + 1] >= 0x80:
        return FAILED  # below 0
    value = np.uint64(0)
    for place in range(at + 1, at + 1 + width):
        if value >> np.uint64(24) and place > at + 4:
            return FAILED  # above 32 bits
        value = (value << _SHIFT) | np.uint64(data[place])
    out[number] = value
    return at + 1 + width


@entry("int64(Array(uint8, 1, 'C', True), int64, uint64[::1])")
def unpack_words(data: Bytes, at: int, out: NDArray[np.uint64]) -> int:
    """As many numbers at `at` as `out` has room for. Returns where they end; -1: the data ends
    before, or there is something else among them than numbers of 64 bits, from 0 on."""
    end = len(data)
    for number in range(len(out)):
        if not 0 <= at < end:
            return FAILED
        first = integer(data[at])
        at += 1
        if first == 0xCF and at + 8 <= end:  # nearly all are of 8 bytes
            high = (integer(data[at]) << 24) | (integer(data[at + 1]) << 16)
            high |= (integer(data[at + 2]) << 8) | integer(data[at + 3])
            low = (integer(data[at + 4]) << 24) | (integer(data[at + 5]) << 16)
            low |= (integer(data[at + 6]) << 8) | integer(data[at + 7])
            out[number] = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
            at += 8
            continue
        if first < 0x80:
            out[number] = first
            continue
        if not 0xCC <= first <= 0xD3:
            return FAILED
        width = integer(1) << (first & 3)
        if at + width > end or (first >= 0xD0 and data[at] >= 0x80):
            return FAILED
        value = np.uint64(0)
        for place in range(at, at + width):
            value = (value << _SHIFT) | np.uint64(data[place])
        out[number] = value
        at += width
    return at


@entry("int64(Array(uint8, 1, 'C', True), int64, uint32[::1], int64, int64)")
def unpack(data: Bytes, at: int, out: Cells, start: int, stop: int) -> int:
    """The numbers at `at`, into `out[start:stop]`. Returns where they end; -1: the data ends
    before, or there is something else among them than numbers of 32 bits, from 0 on."""
    safe = len(data) - _WIDEST
    for number in range(start, stop):
        length = integer(0)
        if 0 <= at <= safe:
            length = integer(_LENGTHS[data[at]])
        if length == 0:
            if not 0 <= at < len(data):
                return FAILED
            at = rare(data, at, out, number)
            if at < 0:
                return FAILED
            continue
        word = np.uint32(data[at])
        if length > 1:
            word = (
                (np.uint32(data[at + 1]) << np.uint32(24))
                | (np.uint32(data[at + 2]) << np.uint32(16))
                | (np.uint32(data[at + 3]) << np.uint32(8))
                | np.uint32(data[at + 4])
            ) >> np.uint32(40 - 8 * length)
        out[number] = word
        at += length
    return at
