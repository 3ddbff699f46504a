"""What changes is known to other routers at once; where it can't be, exchanges follow sooner."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest

from router.index.load import Load
from router.index.reservations import Reservation, Reservations
from router.shared import MemoryStore, Peers, PeerTimes, StoreFailed, StoreState
from router.shared.news import PUBLISH_S, READ_S
from router.shared.report import decode_news, encode_news, encode_report
from tests.support.builders import ManualClock
from tests.support.processes import until

TIMES = PeerTimes(news_s=0.001)


class MoodyStore(MemoryStore):
    """`refusal`: what it answers who wants to listen. `swallows`: news reach nobody."""

    refusal = None
    swallows = False

    async def publish(self, news):
        if not self.swallows:
            await super().publish(news)

    async def listen(self, hear, ready):
        if self.refusal is not None:
            raise StoreFailed(self.refusal, "as told")
        await super().listen(hear, ready)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return MoodyStore(clock)


@pytest.fixture
def make(clock, store):
    return lambda name: Peers(name, store, Reservations(clock), clock, TIMES)


def book(peers, tokens=1000):
    claim = Reservation("r1", tokens, 500.0, (), peers.clock())
    peers.reservations.take(claim)
    return claim


async def sees(peers, tokens):
    return peers.reservations.load("r1").queued_tokens == tokens


async def is_in(peers, state):
    return peers.news.state == state


@asynccontextmanager
async def told_at_once(*routers):
    """They know of each other, and tell each other news."""
    tasks = []

    def run(name, work):
        if name == "shared-news":
            tasks.append(asyncio.create_task(work()))

    for one in routers:
        one.start(run)
    try:
        for one in routers:
            await until(partial(is_in, one, one.store.refusal or "ok"))
        await exchange(*routers)
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def exchange(*routers):
    """Twice: who was first has heard of the last then."""
    for one in (*routers, *routers):
        one.clock.advance(0.001)
        await one.tick()


async def test_a_choice_is_known_to_others_before_the_next_exchange(make):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        claim = book(one)
        await until(lambda: sees(two, 1000))
        one.reservations.release(claim)
        await until(lambda: sees(two, 0))
        assert one.pause_s() == two.pause_s() == TIMES.interval_s


async def test_what_changes_while_news_are_under_way_comes_with_the_next(make):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        for _ in range(50):
            book(one, tokens=1)
            await asyncio.sleep(0)
        await until(lambda: sees(two, 50))
        assert one.news.told < 50


async def test_news_take_no_more_than_a_twentieth_of_a_core_for_long(make, clock):
    one = make("one")
    one.hearing.reports({str(n): encode_report(1, {}) for n in range(3)})
    pauses, since = [], clock()
    for _ in range(400):
        pauses.append(one.news.pause_s())
        clock.advance(pauses[-1])
    assert pauses[0] == TIMES.news_s
    work_s = 400 * (PUBLISH_S + 3 * READ_S)
    assert work_s <= 0.05 * (clock() - since + 0.6)
    assert pauses[-1] == pytest.approx((PUBLISH_S + 3 * READ_S) / 0.05)


async def test_a_report_that_was_overtaken_by_news_does_not_undo_them(make):
    one = make("one")
    busy, idle = Load(queued_tokens=7, wait_ms=9e3, waiting=1), Load()
    one.hearing.news(decode_news(encode_news("two", 5, {"r1": busy})))
    one.hearing.reports({"two": encode_report(4, {"r1": idle})})
    assert one.hearing.told.get("r1").queued_tokens == 7
    one.hearing.reports({"two": encode_report(3, {})})
    assert one.hearing.told.get("r1").queued_tokens == 7
    one.hearing.reports({"two": encode_report(6, {"r1": idle})})
    assert one.hearing.told.get("r1").queued_tokens == 0


async def test_while_one_router_tells_no_news_load_is_exchanged_as_before(make, store):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        await store.exchange("old", encode_report(1, {}), 2.0)
        await exchange(one)
        book(one)
        assert one.pause_s() == TIMES.busy_interval_s


@pytest.mark.parametrize("state", [StoreState.DENIED, StoreState.DOWN])
async def test_where_nobody_may_listen_load_is_exchanged_as_before(make, store, state):
    store.refusal = state
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        book(one)
        assert one.pause_s() == TIMES.busy_interval_s
        await exchange(one, two)
        assert await sees(two, 1000)
        assert one.state == "ok"
        assert one.sample().news == state


async def test_news_are_tried_again_as_soon_as_the_store_answers(make, store):
    store.refusal = StoreState.DOWN
    one = make("one")
    async with told_at_once(one):
        store.refusal = None
        one.news.hurry()
        await until(lambda: is_in(one, "ok"))


async def test_who_does_not_hear_its_own_news_listens_anew(make, store, clock):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        store.swallows = True
        book(one)

        async def is_told():
            return one.news.told == 1

        await until(is_told)
        store.swallows = False
        clock.advance(1.5)
        book(one)
        await until(lambda: is_in(one, "slow"))
        assert one.pause_s() == TIMES.busy_interval_s
        await until(lambda: is_in(one, "ok"))


async def test_how_late_news_are_is_known_from_ones_own(make, clock):
    one, two = make("one"), make("two")

    def hear_late(data):
        clock.advance(0.004)
        listen(data)

    async with told_at_once(one, two):
        listen, one.store._listeners[0] = one.store._listeners[0], hear_late
        book(one)
        await until(lambda: sees(two, 1000))
        await exchange(one)
        assert one.reservations.others.unseen_s == pytest.approx(0.004)


async def test_a_lone_router_tells_nobody_and_misses_nothing(make):
    one = make("one")
    async with told_at_once(one):
        book(one)
        await exchange(one)
        assert one.news.told == 0
        assert one.reservations.others.unseen_s == 0.0


async def test_processes_of_one_host_do_not_tell_each_other_what_they_know(clock, store):
    one, two = (Peers(n, store, Reservations(clock), clock, TIMES, group="host") for n in "ab")
    async with told_at_once(one, two):
        book(one)
        await exchange(one, two)
        assert (one.routers, one.news.told, two.news.heard) == (2, 0, 0)
        assert two.reservations.others.get("r1") is None
        assert two.reservations.others.unseen_s == 0.0


async def test_who_goes_says_so(make):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        book(one)
        await until(lambda: sees(two, 1000))
        await one.leave()
        assert two.routers == 1
        assert await sees(two, 0)


async def test_nonsense_is_nobodys_news(make, store):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        for data in (b"", b"\xc1", b"x", encode_news("two", 1, {})[:-3]):
            await store.publish(data)
        assert one.routers == 2


async def test_of_a_time_in_which_others_were_not_heard_nobody_says_that_they_were_quiet(
    make, store, clock
):
    one, two = make("one"), make("two")
    async with told_at_once(one, two):
        clock.advance(1.0)
        await exchange(one, two)
        now = clock()
        clock.advance(1.0)
        assert one.hearing.told.quiet("r1", now - 0.5, now - 0.2) is True

        async def fail(*values):
            raise StoreFailed(StoreState.DOWN, "as told")

        store.exchange = fail
        await one.tick()
        clock.advance(1.0)
        assert one.hearing.told.quiet("r1", now - 0.5, now - 0.2) is True
        assert one.hearing.told.quiet("r1", now + 0.2, now + 0.5) is False
        del store.exchange
        await exchange(one, two)
        heard_again = clock()
        clock.advance(1.0)
        assert one.hearing.told.quiet("r1", now + 0.2, now + 0.5) is False
        assert one.hearing.told.quiet("r1", heard_again + 0.1, heard_again + 0.3) is True
