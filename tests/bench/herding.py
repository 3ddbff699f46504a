"""Herding: equal cold prompts over routers of one host. How often is the prefix computed?

python -m tests.bench.herding [--processes 4] [--prompts 100] [--tokens 8192] [--plain]

An engine always computes a prompt's last block, whatever it holds: what is shared is the prefix
before it, and copies are counted of that. Goal: at most two.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from tests.support.processes import fleet, until

WINDOW_S = 0.05
PROFILE = ("--profile", "h100-8b-bf16")
BLOCK_TOKENS = 16
"""Of the engines: what is always computed."""
MOST_TIMES = 2.0


@dataclass(frozen=True, slots=True)
class Herd:
    """`computed_tokens`: of each reply, those that no cache held. `span_s`: the sending."""

    tokens: int
    computed_tokens: Sequence[int]
    span_s: float

    @property
    def times_computed(self) -> float:
        """How often the prefix was computed, fleet-wide."""
        of_prefix = sum(max(0, computed - BLOCK_TOKENS) for computed in self.computed_tokens)
        return of_prefix / (self.tokens - BLOCK_TOKENS)

    @property
    def all_computed(self) -> float:
        """The same with all last blocks."""
        return sum(self.computed_tokens) / self.tokens


async def ready_everywhere(session: aiohttp.ClientSession, url: str, probes: int = 48) -> bool:
    """Each probe has a connection of its own, so that the kernel spreads them."""

    async def is_ready() -> bool:
        async with session.get(url + "/readyz") as response:
            return response.status == 200

    return all(await asyncio.gather(*(is_ready() for _ in range(probes))))


@dataclass(frozen=True, slots=True)
class Shape:
    """`stream` false: the router sees no first token, and lets go of the load by prediction."""

    model: str
    prompts: int
    tokens: int
    stream: bool = True


async def herd(session: aiohttp.ClientSession, url: str, shape: Shape, seed: int) -> Herd:
    """Send the same prompt, that nobody has seen, over `prompts` connections within 50 ms."""
    draw = random.Random(seed)
    ids = [draw.randrange(1000, 8000) for _ in range(shape.tokens)]
    body = {"model": shape.model, "prompt": ids, "max_tokens": 4, "stream": shape.stream}
    if shape.stream:
        body["stream_options"] = {"include_usage": True}
    loop = asyncio.get_running_loop()
    sent = []

    async def ask(number: int) -> int:
        await asyncio.sleep(WINDOW_S * number / shape.prompts)
        sent.append(loop.time())
        async with session.post(url + "/v1/completions", json=body) as response:
            response.raise_for_status()
            text = await response.text()
        last = text.split("\n\n")[-3].removeprefix("data: ") if shape.stream else text
        usage = json.loads(last)["usage"]
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    uncached = await asyncio.gather(*(ask(number) for number in range(shape.prompts)))
    return Herd(shape.tokens, uncached, max(sent) - min(sent))


async def measure(args: argparse.Namespace) -> list[Herd]:
    """Four replicas; each repeat is another prompt."""
    flags = ("--processes", str(args.processes), "--set", "log.access=false")
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        fleet(4, engine_flags=PROFILE, router_flags=flags) as built,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        url = built.router.url
        await until(lambda: ready_everywhere(session, url))
        for engine in built.engines:  # the first event tells a replica's block size
            await herd(session, engine.url, Shape(built.model, 1, 64), 7)
        await until(lambda: ready_everywhere(session, url))
        shape = Shape(built.model, args.prompts, args.tokens, not args.plain)
        return [await herd(session, url, shape, 1000 + number) for number in range(args.repeats)]


def main() -> int:
    """0 if the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("processes", 4), ("prompts", 100), ("tokens", 8192), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--plain", action="store_true", help="replies that aren't streamed")
    args = parser.parse_args()
    herds = asyncio.run(measure(args))
    for one in herds:
        sys.stdout.write(
            f"{len(one.computed_tokens)} prompts of {one.tokens} tokens within "
            f"{one.span_s * 1e3:.0f} ms over {args.processes} routers: prefix computed "
            f"{one.times_computed:.2f} times, with all last blocks {one.all_computed:.2f}\n"
        )
    worst = max(one.times_computed for one in herds)
    sys.stdout.write(f"worst: {worst:.2f} (goal: at most {MOST_TIMES:g})\n")
    return 0 if worst <= MOST_TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
