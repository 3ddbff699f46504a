"""The life of an event: from a source's frames to the index, without a network."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import pytest

from router.blocks import AllBlocksCleared, Frame, MalformedFrame
from router.events import (
    IngestCounters,
    LinkDown,
    LinkUp,
    ReplayUnavailable,
    ReplicaTrust,
    Standing,
    Trust,
    follow,
)
from router.index import MemoryIndex
from tests.support.events import (
    CLEARED,
    ScriptedSource,
    frame,
    prefix,
    prompt_tokens,
    removed,
    stored,
)
from tests.support.followed import Followed, following, following_source, frames
from tests.support.indexes import MAKERS

TOKENS = list(range(16))


@pytest.fixture(autouse=True, params=list(MAKERS.values()), ids=list(MAKERS))
def each_index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Followed, "make", request.param)


async def test_an_idle_engine_that_has_published_nothing_is_exact_and_empty():
    async with following(past=[]) as a:
        await a.hears(LinkUp())
        assert a.state == (Trust.EXACT, "")
        assert a.holds()
        assert a.source.asked == [0]


async def test_a_late_join_learns_the_past_first_and_then_the_live_frames():
    async with following(past=frames(0, 1, 2)) as a:
        await a.hears(LinkUp(), *frames(1, 2, 3))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2, 3)
        assert (a.counters.frames, a.counters.duplicates) == (4, 2)
        assert a.told == [Trust.CATCHING_UP, Trust.EXACT]


@pytest.mark.parametrize("first", [1, 5, 4711])
async def test_a_late_join_whose_past_is_gone_is_degraded(first):
    async with following(past=frames(first, first + 1)) as a:
        await a.hears(LinkUp(), *frames(first + 2))
        assert a.state == (Trust.DEGRADED, f"history before frame {first} is unknown")
        assert a.holds(first, first + 1, first + 2)


async def test_without_replay_a_first_frame_0_is_exact():
    async with following(past=None) as a:
        await a.hears(LinkUp())
        assert a.state == (Trust.DEGRADED, "no replay endpoint")
        await a.hears(*frames(0, 1))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1)


@pytest.mark.parametrize("first", [1, 4711])
async def test_without_replay_a_late_first_frame_is_degraded(first):
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(first))
        assert a.state == (
            Trust.DEGRADED,
            f"frames 0 to {first - 1} are lost: no replay endpoint",
        )
        assert a.holds(first)


async def test_all_blocks_cleared_makes_a_degraded_replica_exact():
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(7), frame(8, CLEARED, stored([1], TOKENS[:4])))
        assert a.state == (Trust.EXACT, "")
        assert a.index.match(prefix(TOKENS)) == {"a": 1}


async def test_a_gap_is_filled_by_a_replay_from_the_last_frame():
    async with following(past=[]) as a:
        await a.hears(LinkUp(), *frames(0, 1))
        a.source.past = frames(0, 1, 2, 3, 4)
        await a.hears(*frames(4, 5))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2, 3, 4, 5)
        assert a.source.asked == [0, 1]
        assert (a.counters.gaps, a.counters.restarts, a.counters.lost_frames) == (1, 0, 0)


async def test_a_gap_without_replay_forgets_the_replica_and_says_so():
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(0, 1, 4))
        assert a.state == (Trust.DEGRADED, "frames 2 to 3 are lost: no replay endpoint")
        assert a.holds(4)
        assert a.counters.lost_frames == 2


async def test_a_gap_whose_past_is_gone_forgets_the_replica():
    async with following(past=[]) as a:
        await a.hears(LinkUp(), *frames(0, 1))
        a.source.past = frames(6, 7, 8)
        await a.hears(*frames(8, 9))
        assert a.state == (Trust.DEGRADED, "history before frame 6 is unknown")
        assert a.holds(6, 7, 8, 9)


async def test_a_replay_that_ends_too_early_leaves_a_gap():
    async with following(past=[]) as a:
        await a.hears(LinkUp(), *frames(0, 1))
        a.source.past = frames(0, 1, 2)
        await a.hears(*frames(5))
        assert a.state == (
            Trust.DEGRADED,
            "frames 3 to 4 are lost: the replay did not bring them",
        )
        assert a.holds(5)


@pytest.mark.parametrize("seq", [0, 1])
async def test_a_restart_begins_an_epoch_and_drops_the_old_blocks(seq):
    async with following(past=[]) as a:
        await a.hears(LinkUp(), *frames(0, 1, 2))
        a.source.past = frames(*range(seq + 1), life=1)
        await a.hears(*frames(seq, life=1))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(*range(seq + 1))
        assert (a.trust.epoch, a.counters.restarts) == (2, 1)


async def test_a_restart_whose_first_frames_are_lost_is_degraded():
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(0, 1, 2, 3), *frames(2, life=1))
        assert a.state == (Trust.DEGRADED, "frames 0 to 1 are lost: no replay endpoint")
        assert a.holds(2)
        assert a.trust.epoch == 2


async def test_a_lost_connection_is_said_and_keeps_the_blocks():
    async with following(past=frames(0, 1)) as a:
        await a.hears(LinkUp(), LinkDown("connection lost"))
        assert a.state == (Trust.BLIND, "connection lost")
        assert a.holds(0, 1)
        assert a.counters.link_losses == 1


async def test_after_a_lost_connection_only_what_was_missed_is_applied():
    async with following(past=[frame(0, stored([1, 2], TOKENS[:8]))]) as a:
        await a.hears(LinkUp(), LinkDown("connection lost"))
        assert a.source.past is not None
        a.source.past = [*a.source.past, frame(1, stored([3], TOKENS[8:12], parent=2))]
        await a.hears(LinkUp(), frame(2, removed(3, 2)))
        assert a.state == (Trust.EXACT, "")
        assert a.index.match(prefix(TOKENS)) == {"a": 1}, "a replayed copy was counted twice"
        assert (a.source.asked, a.trust.epoch) == ([0, 0], 1)


async def test_a_whole_replay_sets_and_does_not_add():
    past = [frame(0, stored([1, 2], TOKENS[:8])), frame(1, stored([2], TOKENS[4:8], parent=1))]
    async with following(past=past) as a:
        await a.hears(LinkUp(), *past)
        for _ in range(3):
            await a.hears(LinkDown("connection lost"), LinkUp(), *past)
        await a.hears(frame(2, removed(2)))
        assert a.index.match(prefix(TOKENS)) == {"a": 2}, "it was stored twice"
        await a.hears(frame(3, removed(2, 1)))
        assert a.index.match(prefix(TOKENS)) == {}, "what was replayed was counted again"
        assert a.state == (Trust.EXACT, "")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
async def test_an_engine_that_restarted_meanwhile_is_known_by_its_bytes(count):
    """Even when the new life has published as much as, or more than, the old one had."""
    async with following(past=frames(0, 1, 2)) as a:
        await a.hears(LinkUp(), LinkDown("connection lost"))
        a.source.past = frames(*range(count), life=1)
        await a.hears(LinkUp())
        assert a.state == (Trust.EXACT, "")
        assert a.holds(*range(count))
        assert a.trust.epoch == 2


async def test_without_replay_a_reconnection_is_doubted_until_the_next_number_proves_it():
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(0, 1), LinkDown("connection lost"), LinkUp())
        assert a.state == (Trust.DEGRADED, "no replay endpoint")
        assert a.holds(0, 1)
        await a.hears(*frames(2))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2)


async def test_frames_in_the_wrong_order_are_all_applied():
    async with following(past=[]) as a:
        await a.hears(LinkUp(), *frames(0))
        a.source.past = frames(0, 1, 2)
        await a.hears(*frames(2, 1, 3))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2, 3)
        assert a.counters.duplicates == 2


class BreakingSource(ScriptedSource):
    """Breaks off in the middle of its first replay."""

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        async for item in super().replay(since):
            if item.seq == 2 and len(self.asked) == 1:
                raise ReplayUnavailable("frame 2 is lost")
            yield item


async def test_a_replay_that_breaks_off_is_taken_up_at_the_next_frame():
    async with following_source(BreakingSource(frames(0, 1, 2, 3))) as a:
        await a.hears(LinkUp())
        assert a.state == (Trust.DEGRADED, "frame 2 is lost")
        await a.hears(*frames(3))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2, 3)
        assert (a.counters.replays, a.counters.failed_replays) == (2, 1)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x90", b"\x93\x01\x91\x91\xabBlockStored\x00"],
    ids=["empty", "not msgpack", "no batch", "event without fields"],
)
async def test_a_malformed_frame_ends_the_task_and_forgets_the_replica(payload):
    source = ScriptedSource(frames(0))
    index = MemoryIndex(clock=lambda: 0.0)
    trust = ReplicaTrust("a")
    source.say(LinkUp(), Frame(1, payload))
    with pytest.raises(MalformedFrame):
        await asyncio.wait_for(follow("a", source, index, trust), 5.0)
    assert index.replicas() == {}
    assert (trust.trust, trust.reason) == (Trust.BLIND, "not followed")


async def test_a_field_of_a_wrong_type_is_malformed_too():
    source = ScriptedSource([frame(0, stored([1], TOKENS[:4], block_size="four"))])
    source.say(LinkUp())
    with pytest.raises(MalformedFrame, match="frame 0"):
        await asyncio.wait_for(
            follow("a", source, MemoryIndex(clock=lambda: 0.0), ReplicaTrust("a")), 5.0
        )


async def test_a_replica_that_leaves_while_its_events_are_applied_leaves_no_ghosts():
    handles = range(20_000)
    events = [stored([handle], prompt_tokens(handle)) for handle in handles]
    source = ScriptedSource([frame(0, *events)])
    index = MemoryIndex(clock=lambda: 0.0)
    task = asyncio.create_task(
        follow("a", source, index, ReplicaTrust("a"), standing=Standing(slice_blocks=64))
    )
    source.say(LinkUp())
    await turns_until(lambda: len(index) > 0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert 0 < index.stats.stored < len(handles)
    assert (len(index), index.replicas()) == (0, {})


async def test_other_tasks_get_a_turn_while_a_large_batch_is_applied():
    events = [stored([n], prompt_tokens(n)) for n in range(2000)]
    turns = await turns_while_applying(frame(0, *events), slice_blocks=100)
    assert turns >= 20


async def test_other_tasks_get_a_turn_while_one_event_of_20_000_blocks_is_applied():
    turns = await turns_while_applying(
        frame(0, stored(range(20_000), range(80_000))), slice_blocks=512
    )
    assert turns >= 42  # in 39 pieces, after some steps of decoding


async def test_other_tasks_get_a_turn_between_many_small_frames():
    small = [frame(seq, AllBlocksCleared()) for seq in range(200)]
    turns = await turns_while_applying(*small, slice_blocks=160)
    assert turns >= 20


async def test_other_tasks_get_a_turn_between_many_duplicates():
    past = [frame(seq, AllBlocksCleared()) for seq in range(200)]
    source = ScriptedSource(past)
    counters = IngestCounters()
    index, trust = MemoryIndex(clock=lambda: 0.0), ReplicaTrust("a")
    task = asyncio.create_task(
        follow("a", source, index, trust, counters, standing=Standing(slice_blocks=160))
    )
    source.say(LinkUp())
    await turns_until(lambda: trust.trust is Trust.EXACT)
    source.say(*past)
    assert await turns_until(lambda: counters.duplicates == 200) >= 20
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def turns_while_applying(*past: Frame, slice_blocks: int) -> int:
    """How often another task runs between a replay's first and last event."""
    source = ScriptedSource(past)
    trust = ReplicaTrust("a")
    task = asyncio.create_task(
        follow(
            "a",
            source,
            MemoryIndex(clock=lambda: 0.0),
            trust,
            standing=Standing(slice_blocks=slice_blocks),
        )
    )
    source.say(LinkUp())
    turns = await turns_until(lambda: trust.trust is Trust.EXACT)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return turns


async def turns_until(claim: Callable[[], bool]) -> int:
    turns = 0
    async with asyncio.timeout(10.0):
        while not claim():
            await asyncio.sleep(0)
            turns += 1
    return turns


async def test_an_idle_engine_that_lost_its_cache_silently_is_found_by_its_real_hits():
    async with following(past=frames(0)) as a:
        await a.hears(LinkUp())
        for _ in range(3):
            if a.trust.observe_hit(predicted_blocks=1, hit_blocks=0):
                a.index.clear("a")
        assert a.state == (Trust.DEGRADED, "real hits fall short of predictions")
        assert a.holds()


async def test_requests_under_way_when_a_reset_is_told_take_nothing_that_was_stored_since():
    async with following(past=frames(0)) as a:
        await a.hears(LinkUp())
        asked_at = time.monotonic()
        await a.hears(frame(1, AllBlocksCleared()), *frames(2))
        for _ in range(5):
            age_s = time.monotonic() - asked_at
            assert not a.trust.observe_hit(predicted_blocks=1, hit_blocks=0, age_s=age_s)
        assert a.state == (Trust.EXACT, "")
        assert a.holds(2)
