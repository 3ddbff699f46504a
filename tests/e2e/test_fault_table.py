"""Each way in which an engine can fail, times streamed or not, alone or with a second replica.

The router is a real process. After each row nothing is in flight anywhere, and the metrics say
what happened. `alone`: what the client sees when there is no other replica. `shared`: with one,
None if the fault must not be seen at all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil
import pytest
import pytest_asyncio

from tests.support.faults import (
    ABORTED,
    ABORTED_STREAM,
    ANSWER,
    BEGINNING,
    ERROR_EVENT,
    LONG_LINE,
    Bed,
    Fault,
    bed,
    says,
    status,
    works,
)
from tests.support.processes import until
from tests.support.raw_http import DONE, LAST, STREAM_HEAD, capture, chunk, json_reply, stream

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
GARBAGE = b"\x16\x03\x01 this is no HTTP\r\n\r\n"
TOO_LONG = b'{"error":{"message":"This model\'s maximum context length is 4096 tokens"}}'
ROUNDS = 4
MOST_GROWTH_BYTES = 24 * 2**20
"""Far less than the replies of a round hold: what is kept would show."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Row:
    """`sees`: (status, error code or None) alone; `also_shared`: another replica changes nothing.

    `outcome`: of the metric warmgate_requests_total, alone. `blames`: the replica counts as failed.
    """

    name: str
    is_stream: bool
    fault: Fault
    sees: tuple[int, str | None]
    outcome: str
    also_shared: bool = False
    blames: bool = True


def both(name: str, fault: Fault, *row: object, **more: bool) -> list[Row]:
    return [Row(name, is_stream, fault, *row, **more) for is_stream in (False, True)]  # type: ignore[arg-type]


UNREACHABLE = (502, "replica_unreachable")
FAILED = (502, "replica_failed")
LATE = (504, "replica_timeout")
ROWS = [
    # a paused vLLM does so: its /health stays well
    *both("hangs before headers", says(b"", then="hang"), LATE, "replica_failed", also_shared=True),
    Row("hangs mid-way", False, says(JSON_HEAD + ANSWER[:99], then="hang"), LATE,
        "replica_failed", also_shared=True),
    Row("hangs mid-way", True, says(BEGINNING, then="hang"), (200, "replica_timeout"),
        "cut_short", also_shared=True),
    *both("resets before the first byte", says(b"", then="reset"), UNREACHABLE, "replica_failed"),
    *both("closes before the first byte", says(b""), UNREACHABLE, "replica_failed"),
    Row("resets after the first byte", False, says(JSON_HEAD + ANSWER[:99], then="reset"), FAILED,
        "replica_failed"),
    Row("resets after the first byte", True, says(BEGINNING, then="reset"),
        (200, "replica_failed"), "cut_short", also_shared=True),
    Row("dies inside an event", True, says(BEGINNING + b'20\r\ndata: {"id', then="reset"),
        (200, "replica_failed"), "cut_short", also_shared=True),
    *both("answers 429", status(b"429 Too Many Requests", b"retry-after: 1\r\n"), (429, ""),
          "replica_error"),
    *both("answers 500", status(b"500 Internal Server Error"), (500, ""), "replica_error",
          also_shared=True),
    *both("answers 500 to a prompt that is too long", status(b"500 Oh", b"", TOO_LONG), (500, ""),
          "replica_error", also_shared=True, blames=False),
    *both("answers 400", status(b"400 Bad Request"), (400, ""), "replica_error",
          also_shared=True, blames=False),
    *both("answers 502", status(b"502 Bad Gateway"), (502, ""), "replica_error"),
    *both("answers 503", status(b"503 Service Unavailable"), (503, ""), "replica_error"),
    *both("its queue is full", status(b"503 Service Unavailable", b"",
          b'{"error":{"message":"queue full"}}'), (503, ""), "replica_error"),
    *both("its queue is full, in vLLM's words", says(capture("error-503-queue-full")), (503, ""),
          "replica_error"),
    *both("answers 504", status(b"504 Gateway Timeout"), (504, ""), "replica_error"),
    *both("sends garbage", says(GARBAGE), FAILED, "replica_failed"),
    *both("aborts without a token", says(json_reply(ABORTED), ABORTED_STREAM), FAILED,
          "replica_failed"),
    Row("says in the stream that it died", True,
        says(b"", STREAM_HEAD + BEGINNING[len(STREAM_HEAD):] + chunk(ERROR_EVENT) + chunk(DONE)
             + LAST), (200, ""), "replica_error", also_shared=True),
    Row("says in the stream that it died, in vLLM's words", True,
        says(b"", capture("engine-died-stream")), (200, ""), "replica_error", also_shared=True),
    Row("sends 10 MB without a newline", False, says(json_reply(b'"' + b"x" * 10_000_000 + b'"')),
        (200, None), "ok", also_shared=True, blames=False),
    Row("sends 10 MB without a newline", True, says(stream(LONG_LINE, b"\n\n", DONE)),
        (200, None), "ok", also_shared=True, blames=False),
]  # fmt: skip


@dataclass
class Counts:
    """How far the router's counters have gone on since `begin`."""

    run: Bed
    outcome: str
    before: dict[str, float] = field(default_factory=dict)

    async def begin(self) -> None:
        self.before = await self.read()

    async def read(self) -> dict[str, float]:
        requests = "warmgate_requests_total"
        return {
            "requests": await self.run.metric(requests),
            "outcome": await self.run.metric(requests, outcome=self.outcome),
            "failures": await self.run.metric("warmgate_replica_failures_total", replica="r1"),
        }

    async def are(self, **wanted: float) -> bool:
        now = await self.read()
        return all(now[name] - self.before[name] == count for name, count in wanted.items())

    async def failures(self) -> float:
        return (await self.read())["failures"] - self.before["failures"]


async def all_free(run: Bed) -> bool:
    """Every replica can be chosen: up, and not said to be full of late."""
    rows = (await run.replicas()).values()
    return all(row["is_healthy"] and not row["is_full"] for row in rows)


def named(row: Row) -> str:
    return f"{row.name}, {'stream' if row.is_stream else 'json'}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone():
    async with bed(works) as run:
        yield run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    async with bed(works, works) as run:
        yield run


@asynccontextmanager
async def failing(run: Bed, row: Row) -> AsyncIterator[Counts]:
    """The first replica fails as the row says, and is up. Afterwards nothing is in flight."""
    engine = run.engines[0]
    engine.fault, engine.asked = row.fault, 0
    await until(lambda: all_free(run))
    counts = Counts(run, row.outcome)
    await counts.begin()
    try:
        yield counts
        await until(run.is_idle)
    finally:
        engine.fault = works


@pytest.mark.parametrize("row", ROWS, ids=named)
async def test_alone_the_client_is_told_and_everything_is_let_go(alone, row):
    async with failing(alone, row) as counts:
        got = await alone.ask(is_stream=row.is_stream)
        code = row.sees[1]
        assert got.status == row.sees[0]
        assert got.is_whole
        if code is None:
            assert got.error is None
            assert len(got.body) > 10_000_000
        else:
            assert got.error is not None
            assert got.error.get("code") == code or not code
        await until(lambda: counts.are(requests=1, outcome=1))
        assert (await counts.failures() > 0) is row.blames


@pytest.mark.parametrize("row", ROWS, ids=named)
async def test_another_replica_answers_where_nothing_was_sent_yet(shared, row):
    async with failing(shared, row) as counts:
        answers = [await shared.ask(is_stream=row.is_stream) for _ in range(ROUNDS)]
        bad = [got for got in answers if got.status != 200 or got.error is not None]
        assert shared.engines[0].asked > 0
        if row.also_shared and row.sees[1] is not None:
            assert [got.status for got in bad] in ([row.sees[0]], [row.sees[0]] * 2)
        else:
            assert bad == []
        await until(lambda: counts.are(requests=ROUNDS))


async def test_after_faults_memory_and_descriptors_are_back(shared):
    router = psutil.Process(shared.router.process.pid)
    # not those that hang, or that say for how long they are full: they only take time
    quick = [row for row in ROWS if row.sees[0] in (200, 502) and "hangs" not in row.name]

    async def suffer(times: int) -> None:
        for row in quick * times:
            async with failing(shared, row):
                await asyncio.gather(*(shared.ask(is_stream=row.is_stream) for _ in range(6)))

    async def is_closed() -> bool:
        return bool(router.num_fds() <= descriptors + 8)

    await suffer(1)
    memory, descriptors = router.memory_info().rss, router.num_fds()
    await suffer(2)
    await until(is_closed)
    assert router.memory_info().rss - memory < MOST_GROWTH_BYTES
