"""Cutting ASCII text into words and looking up their ids: plain functions over arrays, compiled.

A table of words is one array: its head, slots (open addressing) of two numbers each, and entries. A
slot holds a word's hash and the place of its entry: 0 is free. An entry is the word's length and
the number of its ids in one number, the ids, and the word's bytes.

All arguments are plain arrays that can be written to: with others a call costs three times as much.
"""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from router.compiled import Cells, called, entry, inlined, integer
from router.tokens.automaton import DEAD, END, START, WIDTH

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]
Tables: TypeAlias = NDArray[np.uint16]
"""Automata one behind the other."""
Span: TypeAlias = tuple[int, int]
"""Where a text begins and ends."""

MAX_WORD_CHARS: Final = 256
TOO_LONG: Final = integer(-1)
PAUSED: Final = integer(-2)
MISSING: Final = integer(-3)
TOLD: Final = integer(-4)

USED, ENTRIES, SLOTS, HEAD = range(4)
"""A table's head: the place behind its last entry, how many there are, how many slots."""

AT, SIZE, BUDGET, KEY, CUTS, IDS, GAPS, WORDS, LEVELS = range(9)
"""Of a scan's state: where it is in how long a text, for how many characters it may go on, the key
of hashes, how many cuts are made; then how many ids and gaps it has found in how many words."""
BASE, PIECE, SOUGHT, LEVEL = range(4)
"""From LEVELS on, for each cut: where its automaton begins, where the piece ends that it is in, and
how far that end was looked for."""
GAP: Final = 3
"""Then come gaps: how many ids are before a word that is not known, its begin and its end."""

_LENGTH_BITS: Final = 16
_LENGTH: Final = integer(2**16 - 1)
_BYTE: Final = integer(255)
_TAG_SHIFT: Final = np.uint64(32)
_WIDTH: Final = integer(WIDTH)
_END: Final = integer(END)
_START: Final = integer(START)
_DEAD: Final = integer(DEAD)
_LONGEST: Final = integer(MAX_WORD_CHARS)
_LEVELS: Final = integer(LEVELS)
_LEVEL: Final = integer(LEVEL)
_HEAD: Final = integer(HEAD)


@inlined
def tag_of(data: Bytes, word: Span, key: int) -> int:
    """32 bits of a hash. Who does not know the key, an odd number, cannot make words that share
    them."""
    factor = np.uint64(key)
    value = factor
    for at in range(word[0], word[1]):
        value = (value ^ np.uint64(data[at])) * factor
    return integer(value >> _TAG_SHIFT)


@inlined
def find(words: Cells, data: Bytes, word: Span, tag: int) -> int:
    """The place of a word's entry; 0: it has none."""
    mask = integer(words[SLOTS]) - 1
    slot = tag & mask
    start, length = word[0], word[1] - word[0]
    while True:
        place = integer(words[_HEAD + 2 * slot + 1])
        if place == 0:
            return place
        if integer(words[_HEAD + 2 * slot]) == tag:
            head = integer(words[place])
            if head & _LENGTH == length:
                text = place + 1 + (head >> _LENGTH_BITS)
                same = integer(0)
                while same < length:
                    four = integer(words[text + (same >> 2)])
                    if (four >> (8 * (same & 3))) & _BYTE != data[start + same]:
                        break
                    same += 1
                if same == length:
                    return place
        slot = (slot + 1) & mask


@inlined
def free_slot(words: Cells, tag: int) -> int:
    """The place of the slot for a word that has none."""
    mask = integer(words[SLOTS]) - 1
    slot = tag & mask
    while words[_HEAD + 2 * slot + 1] != 0:
        slot = (slot + 1) & mask
    return _HEAD + 2 * slot


@called
def add(words: Cells, text: tuple[Bytes, int, int, int], ids: tuple[Cells, int, int]) -> bool:
    """Add a word that is not there. False: there is no room.

    `text`: where it stands, its begin and end, its hash. `ids`: where they stand, begin and end.
    """
    data, start, end, tag = text
    values, first, last = ids
    place = integer(words[USED])
    count, length = last - first, end - start
    behind = place + 1 + count + ((length + 3) >> 2)
    if behind > len(words) or 2 * (integer(words[ENTRIES]) + 1) > integer(words[SLOTS]):
        return False
    words[place] = length | (count << _LENGTH_BITS)
    for number in range(count):
        words[place + 1 + number] = values[first + number]
    four, at = integer(0), place + 1 + count
    for number in range(length):
        four |= integer(data[start + number]) << (8 * (number & 3))
        if number & 3 == 3 or number == length - 1:
            words[at] = four
            four, at = integer(0), at + 1
    slot = free_slot(words, tag)
    words[slot], words[slot + 1] = tag, place
    words[USED] = behind
    words[ENTRIES] += np.uint32(1)
    return True


@called
def match_end(tables: Tables, base: int, data: Bytes, span: Span) -> int:
    """Where the match at a span's begin ends, in text that ends with the span; the begin itself:
    there is none. TOO_LONG."""
    at, limit = span
    state, found, place = _START, at, at
    while True:
        character = _END
        if place < limit:
            character = integer(data[place])
        reached = integer(tables[base + state * _WIDTH + character])
        if reached & 1:
            found = place
        state = reached >> 1
        if state == _DEAD:
            return found
        place += 1
        if place - at > _LONGEST:
            return TOO_LONG


@called
def piece_end(tables: Tables, data: Bytes, span: Span, state: Numbers, level: int) -> int:
    """Where the piece at a span's begin ends: a match, or all before the next one. TOO_LONG,
    PAUSED. `level`: where the state says more of this cut."""
    at, limit = span
    base = integer(state[level + BASE])
    end = match_end(tables, base, data, span)
    if end != at:
        return end
    place = max(integer(state[level + SOUGHT]), at + 1)
    last = place + integer(state[BUDGET])
    while place < limit:
        if place >= last:
            state[level + SOUGHT] = place
            return PAUSED
        end = match_end(tables, base, data, (place, limit))
        if end < 0:
            return end
        if end > place:
            return place
        place += 1
    return limit


@called
def word_end(tables: Tables, data: Bytes, at: int, state: Numbers) -> int:
    """Where the word at this place ends. Each cut is made in the pieces of the one before.
    TOO_LONG, PAUSED."""
    limit, level = integer(state[SIZE]), _LEVELS
    for _ in range(state[CUTS]):
        if state[level + PIECE] <= at:
            end = piece_end(tables, data, (at, limit), state, level)
            if end < 0:
                return end
            state[level + PIECE] = end
            state[level + SOUGHT] = 0
        limit = integer(state[level + PIECE])
        level += _LEVEL
    if limit - at > _LONGEST:
        return TOO_LONG
    return limit


@inlined
def put_out(words: Cells, place: int, ids: Cells, count: int) -> int:
    """An entry's ids; returns how many are out then."""
    number = integer(words[place]) >> _LENGTH_BITS
    for one in range(number):
        ids[count + one] = words[place + 1 + one]
    return count + number


@inlined
def look_up(
    newer: Cells, older: Cells, data: Bytes, word: tuple[int, int, int], out: tuple[Cells, int]
) -> int:
    """Put out a word's ids; returns how many are out then, MISSING: neither table has it.

    `word`: begin, end and hash. `out`: where ids go, and how many are there.
    """
    start, end, tag = word
    ids, count = out
    place = find(newer, data, (start, end), tag)
    if place:
        return put_out(newer, place, ids, count)
    place = find(older, data, (start, end), tag)
    if place == 0:
        return MISSING
    now = put_out(older, place, ids, count)
    add(newer, (data, start, end, tag), (ids, count, now))
    return now


@entry("int64(uint8[::1], uint16[::1], int64[::1], uint32[::1], uint32[::1], uint32[::1])")
def scan(
    data: Bytes, tables: Tables, state: Numbers, newer: Cells, older: Cells, ids: Cells
) -> int:
    """Look up words from the state's place on. What only the older table has is added to the newer.

    `ids`: room for one for each character. How many there are is returned if that is all there is
    to say: the text is at its end, and all words are known. If not, the state says it (TOLD),
    unless a word is too long (TOO_LONG).
    """
    at, count, gap, words = integer(state[AT]), integer(0), integer(0), integer(0)
    key, gaps = integer(state[KEY]), _LEVELS + _LEVEL * integer(state[CUTS])
    most = (integer(len(state)) - gaps) // GAP
    size = integer(state[SIZE])
    last, end = min(at + integer(state[BUDGET]), size), integer(0)
    while at < last and gap < most:
        end = word_end(tables, data, at, state)
        if end < 0:
            break
        word = (at, end, tag_of(data, (at, end), key))
        now = look_up(newer, older, data, word, (ids, count))
        if now == MISSING:
            place = gaps + GAP * gap
            state[place], state[place + 1], state[place + 2] = count, at, end
            gap += 1
        else:
            count = now
        at = end
        words += 1
    if end == TOO_LONG:
        return TOO_LONG
    if gap == 0 and at == size and state[AT] == 0:
        return count
    state[AT], state[IDS], state[GAPS], state[WORDS] = at, count, gap, words
    return TOLD


@entry("int64(uint8[::1], int64[::1], uint32[::1], int64[::1], int64[::1], uint32[::1])")
def learn(
    data: Bytes, ends: Numbers, ids: Cells, id_ends: Numbers, state: Numbers, words: Cells
) -> int:
    """Add words from the one with the number AT on. Returns the first that there is no room for.

    `ends`, `id_ends`: where each one's text and ids end. `state`: AT and KEY count.
    """
    key = integer(state[KEY])
    for number in range(state[AT], len(ends)):
        start, from_id = integer(0), integer(0)
        if number > 0:
            start, from_id = integer(ends[number - 1]), integer(id_ends[number - 1])
        end, to_id = integer(ends[number]), integer(id_ends[number])
        tag = tag_of(data, (start, end), key)
        if find(words, data, (start, end), tag):
            continue
        if not add(words, (data, start, end, tag), (ids, from_id, to_id)):
            return number
    return len(ends)


@entry("void(uint32[::1], uint32[::1])")
def enlarge(words: Cells, larger: Cells) -> None:
    """Put all that is in one table into another, which is empty and has more slots."""
    slots, more = integer(words[SLOTS]), integer(larger[SLOTS])
    begin, shift = _HEAD + 2 * slots, 2 * (more - slots)
    for place in range(begin, words[USED]):
        larger[place + shift] = words[place]
    larger[USED], larger[ENTRIES] = integer(words[USED]) + shift, words[ENTRIES]
    for number in range(slots):
        slot = _HEAD + 2 * number
        if words[slot + 1]:
            free = free_slot(larger, integer(words[slot]))
            larger[free], larger[free + 1] = words[slot], integer(words[slot + 1]) + shift
