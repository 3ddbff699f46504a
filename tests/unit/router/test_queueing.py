"""Requests wait in the router until a replica can start them; however that ends, nothing stays."""

import asyncio
from collections import Counter

import pytest

from router.errors import NoReplicaAvailable, QueueFull, QueueTimeout
from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.queueing import NoQueue, Queue, QueueLimits
from router.routing import Ask, Chooser, Contender, Speeds
from router.routing.policies.cache_aware import CacheAware

SLO_MS = 100.0


class World:
    """One replica and its chooser, on the loop's clock."""

    def __init__(self, **limits):
        self.clock = asyncio.get_running_loop().time
        self.chooser = Chooser(
            MemoryIndex(clock=self.clock),
            Reservations(self.clock),
            Speeds(),
            CacheAware(),
            self.clock,
        )
        self.ends: Counter[str] = Counter()
        limits = {"slo_ms": SLO_MS, **limits}
        self.queue = Queue(
            QueueLimits(**limits), self.clock, lambda how, wait_s: self.ends.update([str(how)])
        )
        self.order = []

    def look(self):
        return self.chooser.consider(Ask(1000), [Contender("r1", "m")])

    def book(self):
        return self.chooser.claim(self.look(), "r1")

    def free(self, claim):
        claim.release()
        self.queue.changed()

    async def ask(self, name, tenant=""):
        """Wait, go, and end only when told: returns the claim."""
        choice = await self.queue.wait("m", tenant, self.look)
        claim = self.chooser.claim(choice, "r1")
        self.order.append(name)
        return claim

    async def wait_for(self, length):
        for _ in range(1000):
            if self.queue.length == length:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{self.queue.length} wait, not {length}")


@pytest.fixture
async def world():
    return World()


async def test_nobody_waits_while_a_replica_can_start(world):
    assert not world.queue.holds("m", world.look())
    world.book()
    world.book()
    assert world.queue.holds("m", world.look())
    assert not NoQueue().holds("m", world.look())


async def test_who_waits_goes_in_order_each_when_a_replica_can_start(world):
    claim = world.book()
    tasks = [asyncio.create_task(world.ask(i)) for i in range(3)]
    await world.wait_for(3)
    for number in range(3):
        world.free(claim)
        claim = await tasks[number]
        assert world.order == list(range(number + 1))
        assert world.queue.length == 2 - number
    assert world.ends == {"sent": 3}


async def test_tenants_take_turns(world):
    claim = world.book()
    names = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]
    tasks = []
    for tenant, number in names:
        tasks.append(asyncio.create_task(world.ask((tenant, number), tenant)))
        await world.wait_for(len(tasks))
    for count in range(len(names)):
        world.free(claim)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (task,) = done
        tasks.remove(task)
        claim = task.result()
        assert len(world.order) == count + 1
    assert world.order == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]


async def test_who_comes_while_others_wait_waits_too(world):
    claim = world.book()
    task = asyncio.create_task(world.ask(1))
    await world.wait_for(1)
    world.chooser.reservations.release(claim.reservation)
    assert world.queue.holds("m", world.look())
    assert not world.queue.holds("another model", world.look())
    world.free(claim)
    (await task).release()


async def test_a_client_that_leaves_frees_its_place(world):
    claim = world.book()
    first, second = (asyncio.create_task(world.ask(i)) for i in range(2))
    await world.wait_for(2)
    first.cancel()
    await world.wait_for(1)
    world.free(claim)
    await second
    assert world.order == [1]
    assert world.ends == {"left": 1, "sent": 1}


async def test_a_prompt_that_gets_done_by_time_alone_is_noticed(world):
    # no event tells that the queue got shorter: predictions fade with time
    world.chooser.claim(world.look(), "r1", silent=True)
    await asyncio.wait_for(world.ask(1), 5.0)


async def test_the_longest_wait_ends_in_sending():
    world = World(wait_s=0.05)
    world.book()
    world.book()
    await world.ask(1)
    assert world.ends == {"late": 1}


async def test_or_in_a_refusal_that_says_when_to_come_back():
    world = World(wait_s=0.05, then_refuse=True)
    world.book()
    with pytest.raises(QueueTimeout) as caught:
        await world.ask(1)
    assert (caught.value.retry_after_s or 0) >= 1
    assert (world.ends, world.queue.length) == ({"refused": 1}, 0)


async def test_a_full_queue_lets_nobody_in():
    world = World(requests=1)
    claim = world.book()
    task = asyncio.create_task(world.ask(1))
    await world.wait_for(1)
    with pytest.raises(QueueFull) as caught:
        await world.ask(2)
    assert (caught.value.retry_after_s or 0) >= 1
    world.free(claim)
    await task


async def test_when_the_router_stops_all_are_sent_in_order(world):
    world.book()
    tasks = [asyncio.create_task(world.ask(i)) for i in range(3)]
    await world.wait_for(3)
    world.queue.let_all_go()
    await asyncio.gather(*tasks)
    assert world.order == [0, 1, 2]
    assert not world.queue.holds("m", world.look())


async def test_replicas_that_are_gone_end_the_wait(world):
    world.book()

    def look():
        raise NoReplicaAvailable("none")

    with pytest.raises(NoReplicaAvailable):
        await world.queue.wait("m", "", look)
    assert (world.ends, world.queue.length) == ({"refused": 1}, 0)
