"""What others make replicas do counts, ages, and is forgotten when nobody says it any more."""

import msgspec
import pytest

from router.index.reservations import Reservation, Reservations
from router.shared import MemoryStore, Peers, StoreFailed, StoreState
from router.shared.report import decode_moves, decode_report, encode_report
from tests.support.builders import ManualClock


class FailingStore(MemoryStore):
    """Fails in `state`, once it is set."""

    state = None

    async def exchange(self, router_id, report, ttl_s):
        if self.state is not None:
            raise StoreFailed(self.state, "as told")
        return await super().exchange(router_id, report, ttl_s)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return FailingStore(clock)


@pytest.fixture
def make(clock, store):
    return lambda name: Peers(name, store, Reservations(clock), clock)


def book(peers, tokens=1000, cost_ms=500.0):
    claim = Reservation("r1", tokens, cost_ms, (), peers.clock())
    peers.reservations.take(claim)
    return claim


async def test_load_is_the_sum_over_routers_and_ends_with_its_claim(make):
    one, two = make("one"), make("two")
    claim = book(one)
    book(two, tokens=10, cost_ms=5.0)
    await one.tick()
    await two.tick()
    load = two.reservations.load("r1")
    assert (load.queued_tokens, load.wait_ms, load.in_flight) == (1010, 505.0, 2)
    assert two.reservations.own_load("r1").queued_tokens == 10
    one.reservations.release(claim)
    await one.tick()
    await two.tick()
    assert two.reservations.load("r1").queued_tokens == 10


async def test_a_report_that_is_read_again_has_aged(make, clock):
    one, two = make("one"), make("two")
    book(one)
    await one.tick()
    await two.tick()
    clock.advance(0.2)
    await two.tick()
    assert two.reservations.load("r1").wait_ms == pytest.approx(300)


@pytest.mark.parametrize("state", ["slow", "down", "full", "denied"])
async def test_while_the_store_fails_the_last_loads_count_until_their_time(
    make, store, clock, state
):
    one, two = make("one"), make("two")
    book(one)
    await one.tick()
    await two.tick()
    store.state = StoreState(state)
    await two.tick()
    assert two.state == state
    assert two.sample().failures == {state: 1}
    assert two.reservations.load("r1").in_flight == 1
    clock.advance(2.1)
    await two.tick()
    assert two.reservations.load("r1").in_flight == 0
    store.state = None
    await one.tick()
    await two.tick()
    assert (two.state, two.routers, two.reservations.load("r1").in_flight) == ("ok", 2, 1)


async def test_a_store_that_lost_everything_is_counted_and_filled_again(make, store):
    one = make("one")
    await one.tick()
    await store.leave("one")
    await one.tick()
    await one.tick()
    assert one.wipes == 1


async def test_a_router_that_leaves_takes_its_load_along(make):
    one, two = make("one"), make("two")
    book(one)
    await one.tick()
    await two.tick()
    await one.leave()
    await two.tick()
    assert two.routers == 1
    assert two.reservations.others.get("r1") is None


async def test_what_cannot_be_read_is_nobodys_load(make, store):
    two = make("two")
    await store.exchange("stranger", b"\xc1 nonsense", 2.0)
    await two.tick()
    assert two.routers == 1


async def test_a_session_that_one_router_moved_has_a_new_home_for_all(make, clock):
    one, two, three = make("one"), make("two"), make("three")
    await two.tick()
    one.moved.note("s", "r2", clock())
    clock.advance(0.2)
    for peers in (one, two, three):
        await peers.tick()
    assert [peers.moved.home("s", clock()) for peers in (one, two, three)] == ["r2"] * 3
    assert not one.moved.untold(10)
    two.moved.note("s", "r3", clock())
    clock.advance(0.2)
    await two.tick()
    await one.tick()
    assert one.moved.home("s", clock()) == "r3"


async def test_a_store_that_knows_no_moves_is_good_enough_for_load(make, clock, monkeypatch):
    async def refuse(note, since, ttl_s):
        raise StoreFailed(StoreState.DENIED, "as told")

    monkeypatch.setattr(MemoryStore, "trade", lambda self, *values: refuse(*values))
    one, two = make("one"), make("two")
    book(one)
    one.moved.note("s", "r2", 0.0)
    await one.tick()
    await two.tick()
    assert two.state == "ok"
    assert two.reservations.load("r1").queued_tokens == 1000
    assert one.failures["denied"] == 1
    monkeypatch.undo()
    clock.advance(0.2)
    await one.tick()
    await two.tick()
    assert two.moved.home("s", 0.0) == "r2"


async def test_load_is_told_sooner_while_a_prompt_waits_anywhere(make, clock):
    one, two = make("one"), make("two")
    assert one.pause_s() == one.times.interval_s
    claim = book(one)
    assert one.pause_s() == one.times.busy_interval_s
    await one.tick()
    await two.tick()
    assert two.pause_s() == two.times.busy_interval_s
    one.reservations.computed(claim)
    await one.tick()
    await two.tick()
    clock.advance(0.9 * one.times.busy_for_s)
    assert one.pause_s() == two.pause_s() == two.times.busy_interval_s
    clock.advance(0.2 * one.times.busy_for_s)
    assert one.pause_s() == two.pause_s() == two.times.interval_s


async def test_exchanges_that_take_long_to_read_do_not_follow_each_other_sooner(clock):
    class Late(Reservations):
        def own_loads(self):
            clock.advance(0.004)
            return super().own_loads()

    one = Peers("one", MemoryStore(clock), Late(clock), clock)
    book(one)
    await one.tick()
    assert one.pause_s() == pytest.approx(0.08)


def test_moves_of_later_versions_and_of_nobody():
    told = msgspec.msgpack.encode(["one", [["key", "r1"]], "of a later version"])
    found = decode_moves(told)
    assert found is not None
    assert found.moves == (("key", "r1"),)
    for data in (b"", b"x", msgspec.msgpack.encode([1]), msgspec.msgpack.encode(["one", [[1]]])):
        assert decode_moves(data) is None


def test_a_later_versions_report_is_read_as_far_as_we_know_it():

    data = msgspec.msgpack.encode(
        [7, [["r1", 5, 1.0, 2, 3, 4.0, 5.0, 6, 7.0, 8, "new"]], "", True, {"more": 1}]
    )
    report = decode_report(data)
    assert report is not None
    assert (report.number, report.loads[0].waiting) == (7, 3)
    assert decode_report(encode_report(1, {})) is not None
