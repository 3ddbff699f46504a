"""Many streams for a long time, with engines that die, clients that leave and clients that dawdle.

Each stream ends with a checksum of its own text: one that ends as if it were whole, and is not,
is a failure. The router's memory is read all along.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import aiohttp
import psutil

from tests.support.faults import CHAT, MODEL, Bed, Fault, bed
from tests.support.processes import until
from tests.support.proxy import Connection
from tests.support.raw_http import DONE, LAST, ROLE, STREAM_HEAD, chunk

WORDS = "harbour valley feather window market ladder bridge candle mirror river".split()
WARM_UP = 0.25
"""Share of the run after which memory must be flat."""


@dataclass(frozen=True)
class Mix:
    """Shares of streams whose engine dies mid-way, whose client leaves, whose client dawdles."""

    dies: float = 0.03
    leaves: float = 0.1
    dawdles: float = 0.05
    events: int = 60
    pause_s: float = 0.02


@dataclass
class Findings:
    """`ends`: streams by how they ended; `wrong`: those that lied; `rss`: (seconds, bytes)."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Memory's last fifth over its first fifth after the warm-up, less one."""
        warm = [rss for _, rss in self.rss[int(WARM_UP * len(self.rss)) :]]
        fifth = max(1, len(warm) // 5)
        return statistics.median(warm[-fifth:]) / statistics.median(warm[:fifth]) - 1


def _event(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


def talks(mix: Mix, rng: Random) -> Fault:
    """An engine's fault: says random words, one event at a time, then their checksum; or dies."""

    async def play(connection: Connection, is_stream: bool) -> None:
        await connection.send(STREAM_HEAD + chunk(ROLE))
        count = rng.randint(1, 2 * mix.events)
        dies_at = rng.randrange(count) if rng.random() < mix.dies else -1
        checksum = 0
        for number in range(count):
            word = rng.choice(WORDS) + " " * rng.randint(1, 400)
            checksum = zlib.crc32(word.encode(), checksum)
            data = chunk(_event(word))
            if number == dies_at:
                await connection.send(data[: rng.randrange(len(data))])
                connection.reset()
                return
            await connection.send(data)
            await asyncio.sleep(mix.pause_s * rng.random())
        await connection.send(chunk(_event(f"#{checksum}", "stop")) + chunk(DONE) + LAST)

    return play


class Soak:
    """`streams` clients at a time, each asking anew when its stream has ended."""

    def __init__(self, run: Bed, mix: Mix, rng: Random) -> None:
        self.findings = Findings()
        self._run = run
        self._mix = mix
        self._rng = rng

    async def work(self, streams: int, seconds: float) -> Findings:
        ends_at = time.monotonic() + seconds
        watching = asyncio.create_task(self._watch_memory())
        await asyncio.gather(*(self._client(ends_at) for _ in range(streams)))
        watching.cancel()
        await until(self._run.is_idle)
        return self.findings

    async def _watch_memory(self) -> None:
        router = psutil.Process(self._run.router.process.pid)
        began = time.monotonic()
        while True:
            self.findings.rss.append((time.monotonic() - began, router.memory_info().rss))
            await asyncio.sleep(0.25)

    async def _client(self, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            try:
                end = await self._one_stream()
            except aiohttp.ClientError as exc:
                end = "lost"
                self.findings.wrong.append(f"a stream was lost: {exc!r}")
            self.findings.ends[end] += 1

    async def _one_stream(self) -> str:
        mix, rng = self._mix, self._rng
        leaves_after = rng.randint(0, mix.events) if rng.random() < mix.leaves else None
        dawdle_s = 0.05 if rng.random() < mix.dawdles else 0.0
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        text, is_done = "", False
        url = self._run.router.url + CHAT
        async with self._run.session.post(url, json=body) as response:
            if response.status != 200:
                return f"status {response.status}"
            number = 0
            async for line in response.content:
                number += 1
                if leaves_after is not None and number > leaves_after:
                    return "left"
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]\n":
                    is_done = True
                    continue
                value = json.loads(line[6:])
                if "error" in value:
                    return "error event"
                text += value["choices"][0]["delta"].get("content") or ""
                if dawdle_s:
                    await asyncio.sleep(dawdle_s)
        return self._judge(text, is_done=is_done)

    def _judge(self, text: str, *, is_done: bool) -> str:
        said, _, checksum = text.partition("#")
        if not is_done or not checksum:
            self.findings.wrong.append(f"ended without an error after {len(text)} characters")
            return "silently cut"
        if zlib.crc32(said.encode()) != int(checksum):
            self.findings.wrong.append(f"{len(said)} characters that are not what was sent")
            return "wrong text"
        return "whole"


async def soak(streams: int, seconds: float, mix: Mix, seed: int = 1) -> Findings:
    """Two engines behind a router process."""
    rng = Random(seed)
    play = talks(mix, rng)
    settings = ("forward.first_byte_timeout_s=30", "forward.idle_timeout_s=30")
    async with bed(play, play, settings=settings) as run:
        return await Soak(run, mix, rng).work(streams, seconds)
