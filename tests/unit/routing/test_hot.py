"""What many prompts begin with is told apart from what each conversation has to itself."""

from random import Random

import pytest

from router.blocks import BlockStored, as_tokens, hash_blocks
from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, Speeds
from router.routing.hot import MOST_BEGINNINGS, HotBeginnings, NothingHot
from tests.support.builders import ManualClock

BLOCK = 16
SYSTEM = list(range(1, 1 + 40 * BLOCK))


class World:
    """One replica that keeps whatever was asked."""

    def __init__(self, max_tokens=10_000):
        self.clock = ManualClock()
        self.index = MemoryIndex(clock=self.clock)
        policy = POLICIES["cache-aware"](Random(1))
        self.chooser = Chooser(self.index, Reservations(self.clock), Speeds(), policy, self.clock)
        self.hot = HotBeginnings(self.clock, max_tokens)

    def ask(self, tokens, model="m", salt=None):
        hashes = hash_blocks(as_tokens(tokens), BLOCK)
        choice = self.chooser.consider(
            Ask(len(tokens)), [Contender("r1", "m", Prefix(hashes, BLOCK))]
        )
        self.hot.note(model, salt, as_tokens(tokens).tobytes(), choice)
        handles = tuple(hashes)
        self.index.store("r1", BlockStored(handles, None, tokens[: len(hashes) * BLOCK], BLOCK))

    def hottest(self, *models):
        return [len(one.tokens) // 4 for one in self.hot.hottest(models or ("m",))]


@pytest.fixture
def world():
    return World()


def own(number, blocks=20):
    return [1_000_000 + 1000 * number + i for i in range(blocks * BLOCK)]


def test_a_shared_beginning_is_found_by_its_length(world):
    for number in range(5):
        world.ask(SYSTEM + own(number))
    (one,) = world.hot.hottest({"m"})
    assert one.tokens == as_tokens(SYSTEM).tobytes()
    assert list(one.hashes) == list(hash_blocks(as_tokens(SYSTEM), BLOCK))


def test_conversations_push_out_each_other_and_not_what_they_share(world):
    for number in range(4):
        world.ask(SYSTEM + own(number))
    for number in range(10, 10 + 2 * MOST_BEGINNINGS):
        history = own(number)
        world.ask(history)
        world.ask(history + own(5000 + number))
    assert world.hottest()[0] == len(SYSTEM)
    assert len(world.hot._known) == MOST_BEGINNINGS


def test_of_two_that_begin_alike_the_longer_one_is_enough(world):
    longer = SYSTEM + own(1)
    for number in range(10, 14):
        world.ask(SYSTEM + own(number))
    for number in range(20, 26):
        world.ask(longer + own(number))
    assert world.hottest() == [len(longer)]


def test_the_budget_is_kept_and_what_is_longer_is_not_remembered():
    world = World(max_tokens=30 * BLOCK)
    for number in range(5):
        world.ask(SYSTEM + own(number))
        world.ask(own(900, 20) + own(100 + number))
        world.ask(own(901, 20) + own(200 + number))
    assert world.hottest() == [20 * BLOCK]


def test_another_models_beginnings_are_not_named(world):
    for number in range(5):
        world.ask(SYSTEM + own(number), "adapter", "tenant")
    assert world.hottest("m") == []
    (one,) = world.hot.hottest({"adapter"})
    assert (one.model, one.salt) == ("adapter", "tenant")


def test_what_nobody_asks_for_any_more_is_not_hot(world):
    for number in range(3):
        world.ask(SYSTEM + own(number))
    world.clock.advance(1200)
    assert world.hottest() == []


def test_without_a_budget_nothing_is_kept(world):
    assert NothingHot().hottest({"m"}) == []
