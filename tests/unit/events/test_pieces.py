"""Long events in pieces: the index must end as if they had come whole."""

from typing import Any

import pytest
from msgspec.structs import replace

from router.blocks import BlockRemoved, BlockStored, Event, EventBatch, encode_batch
from router.blocks.steps import VALUES_PER_STEP, EventReader
from router.events.pieces import PIECE_BLOCKS, in_pieces
from router.index import MemoryIndex
from tests.support.events import CLEARED, prefix, removed, stored

COUNT = 3 * PIECE_BLOCKS + 7
TOKENS = list(range(4 * COUNT))
PROMPT = prefix(TOKENS)


def indexed(*events: Event) -> MemoryIndex:
    index = MemoryIndex(clock=lambda: 0.0)
    for event in in_pieces(events):
        assert not isinstance(event, BlockStored | BlockRemoved) or (
            len(event.block_hashes) <= PIECE_BLOCKS
        )
        if isinstance(event, BlockStored):
            index.store("a", event)
        elif isinstance(event, BlockRemoved):
            index.remove("a", event)
    return index


def test_a_long_prompt_is_stored_piece_by_piece():
    assert indexed(stored(range(COUNT), TOKENS)).match(PROMPT) == {"a": COUNT}


def test_pieces_go_on_where_the_parent_ended():
    head, rest = stored([-1], [7, 7, 7, 7]), stored(range(COUNT), TOKENS, parent=-1)
    assert indexed(head, rest).match(prefix([7, 7, 7, 7, *TOKENS])) == {"a": COUNT + 1}


def test_each_piece_keeps_the_keys_of_its_own_blocks():
    keys: list[list[Any] | None] = [None] * COUNT
    keys[0], keys[PIECE_BLOCKS + 1] = ["tenant"], [["image", 3]]
    whole = MemoryIndex(clock=lambda: 0.0)
    event = stored(range(COUNT), TOKENS, extra_keys=keys)
    whole.store("a", event)
    assert indexed(event).blocks_of("a") == whole.blocks_of("a")
    assert indexed(event).match(prefix(TOKENS, salt="tenant")) == {"a": PIECE_BLOCKS + 1}


def test_removals_one_by_one_and_in_one_event_come_in_pieces_too():
    prompt = stored(range(COUNT), TOKENS)
    one_by_one = [removed(handle) for handle in reversed(range(1, COUNT))]
    assert indexed(prompt, *one_by_one).match(PROMPT) == {"a": 1}
    assert indexed(prompt, removed(*reversed(range(1, COUNT)))).match(PROMPT) == {"a": 1}


def test_removals_of_other_groups_and_media_are_not_joined():
    events: list[Event] = [
        removed(1),
        removed(2, group_idx=1),
        removed(3, medium="CPU"),
        CLEARED,
        removed(4),
    ]
    assert list(in_pieces(events)) == events


@pytest.mark.parametrize("tokens", [TOKENS[:-1], [], [*TOKENS, 1]])
def test_an_event_whose_tokens_do_not_fill_its_blocks_stays_as_it_is(tokens):
    event = stored(range(COUNT), tokens)
    assert list(in_pieces([event])) == [event]


def plain(event: Event) -> Event:
    """With its tokens as a list, whatever they were."""
    if isinstance(event, BlockStored):
        return replace(event, token_ids=list(event.token_ids))
    return event


@pytest.mark.parametrize("odd", ["four", 2**40, None, -1])
def test_a_long_list_may_hold_other_things_than_token_ids(odd):
    tokens: list[Any] = [7] * 30_000
    tokens[29_000] = odd
    event = stored(range(7_500), tokens)
    read = EventReader(encode_batch(EventBatch(0.0, (event,), 0)))
    assert [plain(each) for each in read if each is not None] == [event]


IN_MANY_STEPS = {
    "one event": (
        (stored(range(2**40, 2**40 + 20_000), range(80_000)),),
        20_000 + 80_000 * 4096 // 32_768,
    ),
    "removals": (tuple(removed(number) for number in range(20_000)), 80_000),
    "blocks one by one": (
        tuple(stored([number], [number] * 4) for number in range(20_000)),
        80_000,
    ),
}


@pytest.mark.parametrize(("events", "values"), IN_MANY_STEPS.values(), ids=IN_MANY_STEPS)
def test_a_large_frame_is_decoded_in_many_steps(events, values):
    """Token ids in a row cost an eighth of other values."""
    read = list(EventReader(encode_batch(EventBatch(0.0, events, 0))))
    assert [plain(event) for event in read if event is not None] == [plain(e) for e in events]
    assert read.count(None) >= values // VALUES_PER_STEP
