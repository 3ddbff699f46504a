"""What was lost, refuted or can't be proved costs EXACT, and is asked for again."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from router.blocks import AllBlocksCleared, Frame
from router.events import FramesLost, LinkUp, Quiet, ReplayUnavailable, Trust, ingest
from router.events.standing import Backoff
from tests.support.events import ScriptedSource, frame
from tests.support.followed import Followed, following, following_source, frames
from tests.support.virtual_time import run_virtually


class FickleSource(ScriptedSource):
    """Does to each replay what `does` says of it, by its number; then answers.

    "fail": no answer. "break": after the first frame. "hang": none for an hour.
    """

    does: dict[int, str]

    async def replay(self, since: int) -> AsyncGenerator[Frame, None]:
        does = self.does.get(len(self.asked), "")
        if does == "hang":
            await asyncio.sleep(3600.0)
        if does == "fail":
            self.asked.append(since)
            raise ReplayUnavailable("no answer")
        wanted = since
        async for item in super().replay(since):
            if item.seq > wanted > since:
                raise FramesLost(f"frame {wanted} is lost", item.seq)
            wanted = item.seq + 1
            yield item
            if does == "break":
                raise ReplayUnavailable("it broke off")


def fickle(past: list[Frame], **does: str) -> FickleSource:
    source = FickleSource(past)
    source.does = {int(number.removeprefix("ask_")): what for number, what in does.items()}
    return source


def refute(a: Followed) -> None:
    """As the keeper does when hits keep missing the predictions."""
    for _ in range(3):
        if a.trust.observe_hit(predicted_blocks=9, hit_blocks=0):
            a.index.clear("a")
            ingest.refute(a.trust, a.standing)


async def test_what_hits_have_refuted_is_learned_anew_before_it_is_exact_again():
    async with following(past=frames(0, 1)) as a:
        await a.hears(LinkUp())
        refute(a)
        for _ in range(9):
            a.trust.observe_hit(predicted_blocks=9, hit_blocks=9)
        assert (a.trust.trust, a.holds()) == (Trust.DEGRADED, True), "exact, and two blocks unknown"
        a.source.past = frames(0, 1, 2)
        await a.hears(*frames(2))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2)
        assert a.trust.epoch == 1


async def test_an_idle_engine_too_is_asked_for_what_was_refuted():
    async with following(past=frames(0, 1)) as a:
        await a.hears(LinkUp())
        refute(a)
        await a.hears(Quiet())
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1)


async def test_a_past_that_was_refuted_twice_in_a_row_is_not_asked_for_again():
    async with following(past=frames(0, 1)) as a:
        await a.hears(LinkUp())
        refute(a)
        await a.hears(Quiet())
        refute(a)
        await a.hears(Quiet(), *frames(2))
        assert a.state == (Trust.DEGRADED, ingest.REFUTED)
        assert a.holds(2)
        await a.hears(frame(3, AllBlocksCleared()), *frames(4))
        assert a.state == (Trust.EXACT, ""), "a reset explains them"
        assert a.holds(4)


async def test_without_replay_what_was_refuted_stays_unknown_until_a_reset():
    async with following(past=None) as a:
        await a.hears(LinkUp(), *frames(0, 1))
        refute(a)
        await a.hears(*frames(2))
        for _ in range(9):
            a.trust.observe_hit(predicted_blocks=9, hit_blocks=9)
        assert a.state[0] is Trust.DEGRADED
        assert a.holds(2)
        assert a.counters.lost_frames == 0


async def test_a_hole_that_only_the_question_for_the_newest_frame_shows_costs_exact():
    async with following_source(fickle(frames(0, 1))) as a:
        await a.hears(LinkUp())
        a.source.past = frames(0, 1, 3)
        await a.hears(Quiet())
        assert a.state == (
            Trust.DEGRADED,
            "frames 2 to 2 are lost: the publisher no longer has them",
        )
        assert a.holds(3)


async def test_a_reset_behind_a_hole_makes_it_exact_again():
    async with following_source(fickle(frames(0, 1))) as a:
        await a.hears(LinkUp())
        a.source.past = [*frames(0, 1, 3), frame(4, AllBlocksCleared()), *frames(5)]
        await a.hears(Quiet())
        assert a.state == (Trust.EXACT, "")
        assert a.holds(5)


async def test_who_gives_no_answer_about_the_newest_frame_is_not_exact():
    async with following_source(fickle(frames(0), ask_1="fail")) as a:
        await a.hears(LinkUp())
        await a.hears(Quiet())
        assert a.state == (Trust.DEGRADED, "no answer")
        await a.hears(*frames(1))
        assert a.state == (Trust.EXACT, ""), "its number follows"


async def test_a_beginning_that_breaks_off_is_not_exact():
    """The engine has restarted, and its replay breaks off when it is asked for the newest frame."""
    async with following_source(fickle(frames(0, 1), ask_2="break")) as a:
        await a.hears(LinkUp())
        a.source.past = frames(0, 1, 2, life=1)
        await a.hears(Quiet())
        assert a.state == (Trust.DEGRADED, "it broke off")


def test_while_an_answer_about_the_newest_frame_is_awaited_it_is_not_exact():
    async def run() -> tuple[Trust, Trust]:
        async with following_source(fickle(frames(0), ask_1="hang")) as a:
            await a.hears(LinkUp())
            a.source.say(Quiet())
            await asyncio.sleep(0.1)
            at_first = a.trust.trust
            await asyncio.sleep(1.0)
            return at_first, a.trust.trust

    assert run_virtually(run) == (Trust.EXACT, Trust.CATCHING_UP)


@pytest.mark.parametrize("past", [frames(0, 1, 3), frames(0, 1, 2, life=1)], ids=["hole", "life"])
def test_what_was_forgotten_while_the_newest_frame_is_asked_for_is_not_exact(past):
    """Not even for the instant in which the replay is asked to go on."""

    async def run() -> tuple[Trust, bool]:
        async with following_source(fickle(frames(0, 1), ask_2="hang")) as a:
            await a.hears(LinkUp())
            a.source.past = past
            a.source.say(Quiet())
            await asyncio.sleep(0.1)
            return a.trust.trust, a.holds()

    trust, holds_nothing = run_virtually(run)
    assert holds_nothing
    assert trust is not Trust.EXACT


def test_a_gap_whose_replay_failed_is_filled_when_the_publisher_answers_again():
    async def run() -> None:
        async with following_source(fickle(frames(0), ask_1="fail")) as a:
            await a.hears(LinkUp())
            a.source.past = frames(0, 1, 2)
            await a.hears(*frames(2))
            assert a.state == (Trust.DEGRADED, "frames 1 to 1 are lost: no answer")
            assert a.holds(2)
            await a.hears(Quiet())
            assert a.trust.trust is Trust.DEGRADED, "it is not asked all the time"
            await asyncio.sleep(1.0)
            await a.hears(Quiet())
            assert a.state == (Trust.EXACT, "")
            assert a.holds(0, 1, 2)

    run_virtually(run)


async def test_a_past_that_is_shorter_than_what_is_known_is_not_learned_anew():
    async with following(past=frames(0)) as a:
        await a.hears(LinkUp(), *frames(1, 2, 3))
        a.standing.doubt_all("a doubt", 1, may_ask=True)
        a.source.past = frames(2, 3)
        await a.hears(Quiet())
        assert a.state == (Trust.DEGRADED, "a doubt")
        assert a.holds(0, 1, 2, 3)


async def test_an_old_frame_0_that_comes_late_is_no_whole_life():
    """After a loss its bytes are no longer remembered, so it looks like a restart."""
    async with following(past=frames(0, 1)) as a:
        await a.hears(LinkUp())
        a.source.past = []
        await a.hears(*frames(5))
        a.source.past = frames(0, 1, 2, 3, 4, 5)
        await a.hears(*frames(0))
        assert a.state == (Trust.EXACT, "")
        assert a.holds(0, 1, 2, 3, 4, 5)


def test_who_does_not_answer_is_asked_again_after_twice_as_long():
    backoff, asked, now_s = Backoff(first_s=1.0, most_s=4.0), [], 0.0
    while now_s < 20.0:
        if backoff.is_due(now_s):
            asked.append(now_s)
            backoff.failed(now_s)
        now_s += 1.0
    assert asked == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    backoff.answered()
    assert backoff.is_due(now_s)
