"""Worker processes: one Python process reads some 50,000 events a second per core at best, so more
load needs more of them. Each makes the same workload and plays its part of the sessions, from one
common start (`perf_counter` is the machine's monotonic clock, the same in all processes).

A worker (`python -m loadgen.crew`) gets its job on stdin, says that it is ready, is told the
start, and sends what it saw on stdout. The end of stdin stops it.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import uvloop

from loadgen.client import Target, open_client
from loadgen.quiet import quiet_gc
from loadgen.record import Record
from loadgen.runner import Part, Runner, RunOptions, RunResult, Tally, Watcher
from loadgen.text import Prose
from loadgen.workload.catalogue import Recipe

LENGTH: Final = struct.Struct(">I")
START: Final = struct.Struct(">d")
READY: Final = b"ready"
READY_TIMEOUT_S: Final = 120.0
LEAD_S: Final = 0.5
"""From the last worker's readiness to the start."""

END_TIMEOUT_S: Final = 10.0
EVERY_S: Final = 0.5


class CrewError(Exception):
    """A worker process ended before it had sent its part."""


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs to know."""

    target: Target
    recipe: Recipe
    prose: tuple[int, float, tuple[str, ...] | None]
    salt: str
    options: RunOptions
    timeout_s: float


class _Frame(msgspec.Struct, omit_defaults=True):
    progress: Tally | None = None
    result: RunResult | None = None


async def run_crew(job: Job, processes: int, watcher: Watcher, stop: asyncio.Event) -> RunResult:
    """The parts of all workers as one result. CrewError when one of them is lost."""
    workers: list[asyncio.subprocess.Process] = []
    try:
        for index in range(processes):
            # One by one: what failed to start must not leave the others behind.
            workers += [await _spawn(job, Part(index, processes))]
        async with asyncio.timeout(READY_TIMEOUT_S):
            for worker in workers:
                if await _frame(worker) != READY:
                    raise CrewError("a worker said something else than that it is ready")
        zero = START.pack(time.perf_counter() + LEAD_S)
        for worker in workers:
            _stdin(worker).write(zero)
        stopper = asyncio.ensure_future(_stop_all(workers, stop))
        try:
            parts = await asyncio.gather(*(_follow(worker, watcher) for worker in workers))
        finally:
            stopper.cancel()
        return join_parts(parts)
    finally:
        await asyncio.gather(*(_end(worker) for worker in workers))


def join_parts(parts: Sequence[RunResult]) -> RunResult:
    """Put together what several processes saw of one run."""
    return RunResult(
        planned=parts[0].planned,
        records=sorted(
            (record for part in parts for record in part.records), key=lambda r: r.end_s
        ),
        prompts={number: said for part in parts for number, said in part.prompts.items()},
        late_s=[late for part in parts for late in part.late_s],
        cpu_s=[cpu for part in parts for cpu in part.cpu_s],
        events=sum(part.events for part in parts),
        duration_s=max(part.duration_s for part in parts),
        is_stopped=any(part.is_stopped for part in parts),
    )


async def _spawn(job: Job, part: Part) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.crew"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        # A Ctrl-C is for this program; it stops the others itself.
        start_new_session=True,
    )
    own = pickle.dumps(replace(job, options=replace(job.options, part=part)))
    _stdin(worker).write(LENGTH.pack(len(own)) + own)
    return worker


async def _follow(worker: asyncio.subprocess.Process, watcher: Watcher) -> RunResult:
    while True:
        frame = msgspec.msgpack.decode(await _frame(worker), type=_Frame)
        if frame.progress is not None:
            watcher.add(frame.progress)
        if frame.result is not None:
            return frame.result


async def _frame(worker: asyncio.subprocess.Process) -> bytes:
    if worker.stdout is None:
        raise CrewError("a worker has no stdout")
    try:
        (length,) = LENGTH.unpack(await worker.stdout.readexactly(LENGTH.size))
        return await worker.stdout.readexactly(length)
    except asyncio.IncompleteReadError as exc:
        raise CrewError(f"worker {worker.pid} ended before its part was done") from exc


async def _stop_all(workers: Sequence[asyncio.subprocess.Process], stop: asyncio.Event) -> None:
    await stop.wait()
    for worker in workers:
        _stdin(worker).close()


async def _end(worker: asyncio.subprocess.Process) -> None:
    _stdin(worker).close()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await worker.wait()
    except TimeoutError:
        worker.kill()
        await worker.wait()


def _stdin(worker: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    if worker.stdin is None:
        raise CrewError("a worker has no stdin")
    return worker.stdin


class _Teller:
    """Tells the parent how it goes, twice a second at most."""

    def __init__(self) -> None:
        self._sent = self._done = self._errors = 0
        self._ttfts: list[float] = []
        self._told_at = time.perf_counter()

    def sent(self) -> None:
        self._sent += 1

    def finished(self, record: Record) -> None:
        self._done += 1
        self._errors += not record.is_ok
        if record.ttft_s is not None and len(self._ttfts) < 100:
            self._ttfts.append(record.ttft_s)
        if time.perf_counter() - self._told_at >= EVERY_S:
            self._told_at = time.perf_counter()
            progress = Tally(self._sent, self._done, self._errors, self._ttfts)
            self._sent = self._done = self._errors = 0
            self._ttfts = []
            _say(msgspec.msgpack.encode(_Frame(progress=progress)))

    def add(self, progress: Tally) -> None:
        return


def _say(frame: bytes) -> None:
    sys.stdout.buffer.write(LENGTH.pack(len(frame)) + frame)
    sys.stdout.buffer.flush()


async def _work(job: Job, stdin: asyncio.StreamReader) -> RunResult:
    prose = Prose(*job.prose)
    async with open_client(job.target, time.perf_counter, job.timeout_s) as client:
        workload = job.recipe(prose, job.salt)
        _say(READY)
        (zero,) = START.unpack(await stdin.readexactly(START.size))
        stop = asyncio.Event()
        watch = asyncio.ensure_future(_until_closed(stdin, stop))
        with quiet_gc():
            runner = Runner(client, job.options, time.perf_counter, _Teller())
            result = await runner.run(workload, stop, zero)
        watch.cancel()
    return result


async def _until_closed(stdin: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await stdin.read()
    stop.set()


async def _main(work: Callable[[Job, asyncio.StreamReader], Awaitable[RunResult]]) -> None:
    stdin = asyncio.StreamReader(limit=1 << 30)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    (length,) = LENGTH.unpack(await stdin.readexactly(LENGTH.size))
    job: Job = pickle.loads(await stdin.readexactly(length))
    _say(msgspec.msgpack.encode(_Frame(result=await work(job, stdin))))


def main() -> None:
    """A worker's life. Without a parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (
        suppress(asyncio.IncompleteReadError, BrokenPipeError),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_main(_work))


if __name__ == "__main__":
    main()
