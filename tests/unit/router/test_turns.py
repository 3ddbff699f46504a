"""Processes of a host place long prompts one after the other, and none waits long for another."""

import asyncio
import json
import subprocess
import sys

import pytest

from router.blocks import BlockStored, as_tokens
from router.index.reservations import Reservations
from router.index.tiers import TieredIndex
from router.openai.generation import parse_generation
from router.planner import Planner
from router.replicas import Pool
from router.routing import Chooser, Speeds
from router.routing.policies.cache_aware import CacheAware
from router.shared import LoadBoard
from router.source import OwnIndex
from router.turns import PATIENCE, Turns
from tests.support.builders import ManualClock, model_rows, replica

REPLICAS = ("r1", "r2", "r3")
BLOCK, LONG = 16, 1024


class IdsOfTheBody:
    async def tokenize(self, generation):
        raise AssertionError("they are known")

    def recall(self, generation):
        return as_tokens(json.loads(generation.body)["prompt"]).tobytes()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def planners(tmp_path, clock):
    """Two processes' of one host."""
    boards = [LoadBoard(tmp_path / "load", slot, 2, clock) for slot in range(2)]
    yield [planner(board, clock) for board in boards]
    for board in boards:
        board.close()


def planner(board, clock):
    pool, index = Pool(clock), TieredIndex(clock=clock)
    pool.reconcile([replica(name) for name in REPLICAS])
    for name in REPLICAS:
        pool.mark_up(name, model_rows("m", "style", adapter_of="m"))
        index.store(name, BlockStored((1,), None, [7] * BLOCK, BLOCK))
    chooser = Chooser(index, Reservations(clock, siblings=board), Speeds(), CacheAware(), clock)
    turns = Turns(board, LONG, clock)
    return Planner(pool, IdsOfTheBody(), OwnIndex(index), chooser, turns=turns)


def ask(tokens, session=None):
    body = json.dumps({"model": "m", "prompt": list(range(100, 100 + tokens)), "stream": True})
    headers = {"x-session-id": session} if session else {}
    return parse_generation("/v1/completions", headers, body.encode(), ("x-session-id",))


async def others_run():
    for _ in range(3):
        await asyncio.sleep(0)


def places(plan):
    return plan.replicas[0].id


async def elsewhere(one):
    """A session whose home is another replica than that of the prompt alone."""
    with await one.plan(ask(8 * LONG)) as plan:
        home = places(plan)
    for number in range(100):
        with await one.plan(ask(8 * LONG, f"s{number}")) as plan:
            if places(plan) != home:
                return f"s{number}"
    raise AssertionError("all sessions have one home")


async def test_who_looked_before_another_told_of_the_same_prompt_looks_again(planners):
    one, other = planners
    session = await elsewhere(one)
    with other.turns.siblings.turn():
        late = asyncio.create_task(one.plan(ask(8 * LONG, session)))
        await others_run()
        assert not late.done()
        first = await other.plan(ask(8 * LONG))
    with first, await late as second:
        assert places(second) == places(first)
        assert second.candidates[places(first)].expected_tokens > 0


@pytest.mark.parametrize(("tokens", "waits"), [(LONG - 1, False), (LONG, True)])
async def test_a_prompt_of_which_little_is_computed_waits_for_no_turn(planners, tokens, waits):
    one, other = planners
    with other.turns.siblings.turn():
        plan = asyncio.create_task(one.plan(ask(tokens)))
        await others_run()
        assert plan.done() is not waits
    with await plan:
        pass


async def test_what_others_compute_already_is_not_long(planners):
    one, other = planners
    with await other.plan(ask(8 * LONG)), other.turns.siblings.turn():
        plan = asyncio.create_task(one.plan(ask(8 * LONG)))
        await others_run()
        assert plan.done()
        plan.result().__exit__(None, None, None)


async def test_nobody_waits_longer_than_a_tenth_of_what_computing_takes(planners, clock):
    one, other = planners
    with other.turns.siblings.turn():
        plan = asyncio.create_task(one.plan(ask(8 * LONG)))
        await others_run()
        assert not plan.done()
        clock.advance(PATIENCE * one.chooser.speeds.of("r1", "m").computing_ms(8 * LONG) / 1e3)
        async with asyncio.timeout(5):
            with await plan:
                pass


def test_a_turn_of_a_process_that_is_killed_is_over(tmp_path):
    board = LoadBoard(tmp_path / "load", 0, 2, ManualClock())
    takes = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)"
    says = "; print(flush=True); sys.stdin.read()"
    command = (sys.executable, "-c", takes + says, str(tmp_path / "load.coming"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert board.turn() is None
        process.kill()
        process.wait()
        assert board.turn() is not None
    board.close()


def test_all_that_any_process_begins_is_counted(planners):
    one, other = planners
    assert one.turns.begun == other.turns.begun == 0


async def test_the_count_tells_of_what_was_begun_meanwhile(planners):
    one, other = planners
    with await one.plan(ask(64)), await other.plan(ask(64)), await one.plan(ask(32)):
        assert one.turns.begun == other.turns.begun == 3
    assert one.turns.begun == 3


async def test_nobody_need_be_told_what_comes_of_a_prompt_that_is_held(planners):
    one, other = planners
    prompt = ask(8 * LONG)
    with await one.plan(prompt) as cold, await one.plan(prompt) as same:
        assert (is_short(cold), is_short(same)) == (False, False)
    tokens = range(100, 100 + 8 * LONG)
    handles = tuple(range(10, 10 + 8 * LONG // BLOCK))
    one.source.index.store("r1", BlockStored(handles, None, tokens, BLOCK))
    with await one.plan(prompt) as held:
        assert places(held) == "r1"
        assert is_short(held)
        with await other.plan(prompt) as elsewhere_unknown:
            assert elsewhere_unknown.candidates["r1"].expected_tokens == 0


def is_short(plan):
    return plan._claim.reservation.is_short
