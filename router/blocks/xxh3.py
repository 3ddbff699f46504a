"""XXH3-64 of one block after the other, each seeded with the hash before: plain functions over an
array of token ids, compiled.

The algorithm is xxHash's (release 0.8); it is done here because a call for each block costs ten
times the hashing itself. What is hashed is the ids as little-endian bytes, so lengths are multiples
of 4 and eight bytes are two ids.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.compiled import Cells, called, entry, inlined

Word: TypeAlias = np.uint64

SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_AT: Final[NDArray[np.uint64]] = np.array(
    [int.from_bytes(SECRET[at : at + 8], "little") for at in range(len(SECRET) - 7)], np.uint64
)
"""The eight bytes of the secret from each place on."""

_WORDS: Final = _AT[::8].copy()

_P32_1: Final = Word(0x9E3779B1)
_P32_2: Final = Word(0x85EBCA77)
_P32_3: Final = Word(0xC2B2AE3D)
_P64_1: Final = Word(0x9E3779B185EBCA87)
_P64_2: Final = Word(0xC2B2AE3D27D4EB4F)
_P64_3: Final = Word(0x165667B19E3779F9)
_P64_4: Final = Word(0x85EBCA77C2B2AE63)
_P64_5: Final = Word(0x27D4EB2F165667C5)
_START: Final[NDArray[np.uint64]] = np.array(
    [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64
)
_MIX_3: Final = Word(0x165667919E3779F9)
_MIX_S: Final = Word(0x9FB21C651E98DF25)
_LOW: Final = Word(0xFFFFFFFF)
_0: Final = Word(0)
_8: Final = Word(8)
_16: Final = Word(16)
_24: Final = Word(24)
_28: Final = Word(28)
_32: Final = Word(32)
_35: Final = Word(35)
_37: Final = Word(37)
_40: Final = Word(40)
_47: Final = Word(47)
_49: Final = Word(49)
_64: Final = Word(64)
_BYTES_1_AND_3: Final = Word(0x00FF00FF00FF00FF)
_PAIRS: Final = Word(0x0000FFFF0000FFFF)

_STRIPE: Final = 16
"""Ids that are taken in at a time, of long inputs."""
_STRIPES: Final = 16
"""After so many the sums are scrambled."""


@inlined
def two(ids: Cells, at: int) -> Word:
    """Two ids as eight bytes."""
    return (Word(ids[at + 1]) << _32) | Word(ids[at])


@inlined
def fold(a: Word, b: Word) -> Word:
    """Both halves of a product of 128 bits, XORed."""
    low, left, right = (a & _LOW) * (b & _LOW), (a >> _32) * (b & _LOW), (a & _LOW) * (b >> _32)
    cross = (low >> _32) + (left & _LOW) + right
    high = (left >> _32) + (cross >> _32) + (a >> _32) * (b >> _32)
    return high ^ (a * b)


@inlined
def swapped(word: Word) -> Word:
    """Its eight bytes in reverse."""
    word = ((word & _BYTES_1_AND_3) << _8) | ((word >> _8) & _BYTES_1_AND_3)
    word = ((word & _PAIRS) << _16) | ((word >> _16) & _PAIRS)
    return (word << _32) | (word >> _32)


@inlined
def mixed(word: Word) -> Word:
    """Every bit depends on every other."""
    word = (word ^ (word >> _37)) * _MIX_3
    return word ^ (word >> _32)


@inlined
def four(ids: Cells, at: int, secret: int, seed: Word) -> Word:
    """Of four ids."""
    return fold(two(ids, at) ^ (_AT[secret] + seed), two(ids, at + 2) ^ (_AT[secret + 8] - seed))


@inlined
def of_one_or_two(ids: Cells, at: int, count: int, seed: Word) -> Word:
    first, last = Word(ids[at]), Word(ids[at + count - 1])
    seed = seed ^ swapped(seed & _LOW)
    word = (last + (first << _32)) ^ ((_AT[8] ^ _AT[16]) - seed)
    word ^= ((word << _49) | (word >> Word(15))) ^ ((word << _24) | (word >> _40))
    word *= _MIX_S
    word ^= (word >> _35) + Word(4 * count)
    hashed: Word = word * _MIX_S
    return hashed ^ (hashed >> _28)


@inlined
def of_three_or_four(ids: Cells, at: int, count: int, seed: Word) -> Word:
    low = two(ids, at) ^ ((_AT[24] ^ _AT[32]) + seed)
    high = two(ids, at + count - 2) ^ ((_AT[40] ^ _AT[48]) - seed)
    return mixed(Word(4 * count) + swapped(low) + high + fold(low, high))


@inlined
def of_few(ids: Cells, at: int, count: int, seed: Word) -> Word:
    """Of 5 to 32 ids."""
    end = at + count
    total = Word(4 * count) * _P64_1
    if count > 8:
        if count > 16:
            if count > 24:
                total += four(ids, at + 12, 96, seed) + four(ids, end - 16, 112, seed)
            total += four(ids, at + 8, 64, seed) + four(ids, end - 12, 80, seed)
        total += four(ids, at + 4, 32, seed) + four(ids, end - 8, 48, seed)
    return mixed(total + four(ids, at, 0, seed) + four(ids, end - 4, 16, seed))


@called
def of_some(ids: Cells, at: int, count: int, seed: Word) -> Word:
    """Of 33 to 60 ids."""
    total = Word(4 * count) * _P64_1
    for number in range(8):
        total += four(ids, at + 4 * number, 16 * number, seed)
    total = mixed(total)
    for number in range(8, count // 4):
        total += four(ids, at + 4 * number, 16 * number - 125, seed)
    return mixed(total + four(ids, at + count - 4, 119, seed))


@inlined
def between(number: int, shift: Word, seed: Word) -> Word:
    """Of the secret that a seed makes, eight bytes that begin so many bits into an odd word."""
    low, high = _WORDS[number] - seed, _WORDS[number + 1] + seed
    found: Word = (low >> shift) | (high << (_64 - shift))
    return found


@inlined
def after(number: int, shift: Word, seed: Word) -> Word:
    """The same, into an even word."""
    low, high = _WORDS[number] + seed, _WORDS[number + 1] - seed
    found: Word = (low >> shift) | (high << (_64 - shift))
    return found


@called
def of_many(ids: Cells, at: int, count: int, seed: Word) -> Word:
    """Of 61 ids or more. Of the eight sums two neighbours depend on each other alone."""
    stripes = (4 * count - 1) // (4 * _STRIPE)
    result = Word(4 * count) * _P64_1
    for lane in range(0, 8, 2):
        even, odd = _START[lane], _START[lane + 1]
        sign, place, here = seed, lane, at + 2 * lane
        for _ in range(stripes):
            one, other = two(ids, here), two(ids, here + 2)
            first, second = (_WORDS[place] + sign) ^ one, (_WORDS[place + 1] - sign) ^ other
            even += other + (first & _LOW) * (first >> _32)
            odd += one + (second & _LOW) * (second >> _32)
            sign, place, here = _0 - sign, place + 1, here + _STRIPE
            if place == lane + _STRIPES:
                place = lane
                even = (even ^ (even >> _47) ^ (_WORDS[16 + lane] + seed)) * _P32_1
                odd = (odd ^ (odd >> _47) ^ (_WORDS[17 + lane] - seed)) * _P32_1
        here = at + count - _STRIPE + 2 * lane  # the last one overlaps
        one, other = two(ids, here), two(ids, here + 2)
        first, second = between(15 + lane, _8, seed) ^ one, after(16 + lane, _8, seed) ^ other
        even += other + (first & _LOW) * (first >> _32)
        odd += one + (second & _LOW) * (second >> _32)
        result += fold(even ^ between(1 + lane, _24, seed), odd ^ after(2 + lane, _24, seed))
    return mixed(result)


@inlined
def one_block(ids: Cells, at: int, size: int, seed: Word) -> Word:
    """The hash of the block of `size` ids that begins there."""
    if size <= 2:
        return of_one_or_two(ids, at, size, seed)
    if size <= 4:
        return of_three_or_four(ids, at, size, seed)
    if size <= 32:
        return of_few(ids, at, size, seed)
    if size <= 60:
        return of_some(ids, at, size, seed)
    return of_many(ids, at, size, seed)


@entry("void(Array(uint32, 1, 'C', True), int64, uint64[::1])")
def chain(ids: Cells, size: int, hashes: NDArray[np.uint64]) -> None:
    """Hash blocks of `size` ids. The first hash's place holds the seed."""
    seed = hashes[0]
    for number in range(len(hashes)):
        seed = one_block(ids, number * size, size, seed)
        hashes[number] = seed


@entry("void(Array(uint32, 1, 'C', True), int64, uint64[::1])")
def hash_each(ids: Cells, size: int, hashes: NDArray[np.uint64]) -> None:
    """Hash blocks of `size` ids, each under the seed that its hash's place holds."""
    for number in range(len(hashes)):
        hashes[number] = one_block(ids, number * size, size, hashes[number])
