"""Plays a workload: sends each request when it is due, whether or not others were answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from loadgen.client import Client, Clock, Exchange
from loadgen.lag import LoopLag
from loadgen.record import Record
from loadgen.workload.protocol import Message, Session, Turn, Workload

LEAD_S: Final = 0.25
"""Prompts are built this long before they are due, so that building doesn't make them late."""


class Tally(msgspec.Struct, array_like=True):
    """What happened since the last one; `ttfts` are some of the answers' times in seconds."""

    sent: int
    done: int
    errors: int
    ttfts: list[float]


class Watcher(Protocol):
    """Someone who looks on while a run goes."""

    def sent(self) -> None: ...

    def finished(self, record: Record) -> None: ...

    def add(self, progress: Tally) -> None:
        """What another process saw."""


class NullWatcher:
    """Nobody looks on."""

    def sent(self) -> None:
        return

    def finished(self, record: Record) -> None:
        return

    def add(self, progress: Tally) -> None:
        return


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several processes this is: it plays every `of`-th session, from `index` on."""

    index: int = 0
    of: int = 1

    def share(self, whole: int) -> int:
        """This part's share of a number that all parts together must not exceed."""
        return whole // self.of + (self.index < whole % self.of)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`max_concurrency` holds requests back when that many are open; they stay due when they were.

    `concurrency` closes the loop: that many users, each begins a session when its last one ended,
    and the workload's own times are not used. `session_header` names a header that carries the
    session's id. `keeps_prompts` keeps every prompt in memory for the hit-rate bound.
    """

    max_concurrency: int | None = None
    concurrency: int | None = None
    session_header: str | None = None
    keeps_prompts: bool = False
    part: Part = field(default_factory=Part)


class RunResult(msgspec.Struct):
    """`planned` minus the records are turns that never came to be: their conversation broke off,
    or the run was stopped. `prompts`: record number → messages. `events`: SSE events read.

    `late_s` is how late each wake of the event loop was; `cpu_s` has one value per process. They
    and `events` are of `whole_s` seconds, where only a part of the records counts (0: of all).
    """

    planned: int
    records: list[Record] = msgspec.field(default_factory=list)
    prompts: dict[int, tuple[Message, ...]] = msgspec.field(default_factory=dict)
    late_s: list[float] = msgspec.field(default_factory=list)
    cpu_s: list[float] = msgspec.field(default_factory=list)
    events: int = 0
    duration_s: float = 0.0
    whole_s: float = 0.0
    is_stopped: bool = False


class Runner:
    """Plays one workload once, or one process's part of it."""

    def __init__(
        self, client: Client, options: RunOptions, clock: Clock, watcher: Watcher | None = None
    ) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._watcher = watcher or NullWatcher()
        self._zero = 0.0
        self._numbers = itertools.count(options.part.index, options.part.of)
        cap = options.max_concurrency and options.part.share(options.max_concurrency)
        self._gate: contextlib.AbstractAsyncContextManager[object] = (
            asyncio.Semaphore(cap) if cap else contextlib.nullcontext()
        )
        self._result = RunResult(planned=0)

    async def run(
        self, workload: Workload, stop: asyncio.Event | None = None, zero: float | None = None
    ) -> RunResult:
        """To the last answer, or until `stop` is set; then requests in flight are dropped.

        `zero` is when the run starts, on the clock; several processes agree on one.
        """
        lag = LoopLag(self._clock)
        result = self._result = RunResult(planned=workload.requests)
        self._zero = self._clock() + LEAD_S if zero is None else zero
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(lag.watch())
            drive = group.create_task(self._drive(workload))
            result.is_stopped = await _stopped_first(drive, stop or asyncio.Event())
            watch.cancel()
        result.late_s, result.cpu_s = list(lag.late_s), [lag.cpu_s()]
        result.duration_s = max((record.end_s for record in result.records), default=0.0)
        return result

    async def _drive(self, workload: Workload) -> None:
        part, users = self._options.part, self._options.concurrency
        mine = itertools.islice(workload.sessions(), part.index, None, part.of)
        async with asyncio.TaskGroup() as group:
            if users:
                for _ in range(part.share(users)):
                    group.create_task(self._be_user(mine))
                return
            for session in mine:
                await self._until(session.start_s - LEAD_S)
                group.create_task(self._converse(session, session.start_s))

    async def _be_user(self, sessions: Iterator[Session]) -> None:
        due_s = 0.0
        for session in sessions:
            due_s = await self._converse(session, due_s)

    async def _converse(self, session: Session, due_s: float) -> float:
        """Play all turns; when the last of them ended."""
        history: list[Message] = []
        for index, turn in enumerate(session.turns):
            if turn.branches:
                due_s = await self._branch(turn.branches, due_s)
            if index:
                due_s += turn.think_s
            history += turn.messages
            body = self._client.target.body(history, turn.max_tokens)
            await self._until(due_s)
            ask = Ask(session.id, index, turn, due_s)
            record, answer = await self._send(ask, history, body)
            due_s = record.end_s
            if not record.is_ok:
                break
            history.append(Message("assistant", answer))
        return due_s

    async def _branch(self, branches: Sequence[Session], after_s: float) -> float:
        """Sub-agents side by side; when the last of them ended."""
        plays = (self._converse(branch, after_s + branch.start_s) for branch in branches)
        return max(await asyncio.gather(*plays))

    async def _send(self, ask: Ask, history: Sequence[Message], body: bytes) -> tuple[Record, str]:
        name = self._options.session_header
        headers = {name: ask.session} if name else {}
        ready_at = self._clock()
        async with self._gate:
            cap_wait_s = self._clock() - ready_at if self._options.max_concurrency else 0.0
            self._watcher.sent()
            exchange = await self._client.send(body, headers)
        record = make_record(next(self._numbers), ask, cap_wait_s, exchange, self._zero)
        self._result.records.append(record)
        self._result.events += exchange.reply.events
        if self._options.keeps_prompts:
            self._result.prompts[record.number] = tuple(history)
        self._watcher.finished(record)
        return record, exchange.reply.text

    async def _until(self, due_s: float) -> None:
        # uvloop rounds to milliseconds, so one sleep may end early; none makes it late by more.
        while (left_s := self._zero + due_s - self._clock()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a session, and when it is due."""

    session: str
    index: int
    turn: Turn
    due_s: float


def make_record(
    number: int, ask: Ask, cap_wait_s: float, exchange: Exchange, zero: float
) -> Record:
    """Times become seconds since `zero`, the run's start on the client's clock."""
    reply, usage = exchange.reply, exchange.reply.usage
    tokens, source = reply.tokens()
    arrivals_s = [arrival.at - zero for arrival in reply.arrivals]
    content_at = reply.first_content_at
    return Record(
        number=number,
        session=ask.session,
        turn=ask.index,
        outcome=exchange.outcome,
        error=exchange.error,
        status=exchange.status,
        replica=exchange.replica,
        request_id=exchange.request_id,
        finish_reason=reply.finish_reason,
        scheduled_s=ask.due_s,
        sent_s=exchange.sent_at - zero,
        end_s=exchange.end_at - zero,
        cap_wait_s=cap_wait_s,
        first_token_s=arrivals_s[0] if arrivals_s else None,
        first_content_s=None if content_at is None else content_at - zero,
        last_token_s=arrivals_s[-1] if arrivals_s else None,
        asked_input_tokens=ask.turn.input_tokens,
        asked_output_tokens=ask.turn.max_tokens,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        completion_tokens=None if usage is None else usage.completion_tokens,
        token_source=source,
        arrivals_s=arrivals_s,
        arrival_tokens=tokens,
    )


async def _stopped_first(drive: asyncio.Task[None], stop: asyncio.Event) -> bool:
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({drive, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    is_stopped = not drive.done()
    if is_stopped:
        drive.cancel()
    return is_stopped
