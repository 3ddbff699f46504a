"""What the gateway adds to a request: chats of 8,000 tokens, 100 a second, its tokenizer warm.

    python -m tests.bench.latency [--per-second 100] [--seconds 20] [--set listen.busy_poll=true]

Every chat is asked of the engine directly and through the gateway, in turn and evenly spaced in
time. `added` compares the two distributions of the time to the first byte of the reply's body. The
gateway has a core of its own, as beside other services it would; clients and engine share the
others.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from random import Random

import aiohttp

from tests.bench.peers import tokenize
from tests.bench.relay import ROOT, free_port, running, wait_for

REPORT = ROOT / "build" / "bench-latency.json"
MODEL_DIR = ROOT / "workers" / "engine" / "model"
PATH = "/v1/chat/completions"
WORDS = "harbour valley feather window market ladder bridge candle mirror river".split()
WORDS_OF_CHAT = 3000
"""About 8,000 tokens of the embedded model's tokenizer."""
CHATS = 40


def chat(number: int, words: int) -> bytes:
    """Turns of one conversation; no two conversations begin alike."""
    rng = Random(number)
    turns = [" ".join(rng.choice(WORDS) for _ in range(words // 8)) for _ in range(8)]
    roles = ["user", "assistant"] * 4
    messages = [
        {"role": role, "content": f"{number} {turn}"}
        for role, turn in zip(roles, turns, strict=True)
    ]
    messages.append({"role": "user", "content": "And now?"})
    return json.dumps({"model": "m", "seed": 0, "messages": messages}).encode()


async def first_byte_ms(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    async with session.post(url + PATH, data=body, headers=headers) as response:
        await response.content.readany()
        took = time.perf_counter() - began
        await response.read()
        assert response.status == 200
    return 1e3 * took


async def measure(
    targets: dict[str, str], bodies: list[bytes], per_second: float, seconds: float
) -> dict[str, list[float]]:
    """Open loop: a late reply delays no other request."""
    took: dict[str, list[float]] = {name: [] for name in targets}

    async def one(name: str, body: bytes) -> None:
        took[name].append(await first_byte_ms(session, targets[name], body))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for name, url in targets.items():
            for body in bodies:
                await first_byte_ms(session, url, body)
            print(f"{name} is warm")
        names = list(targets)
        tasks = []
        began = time.perf_counter()
        # each target gets `per_second`, in turn
        for number in range(int(len(names) * per_second * seconds)):
            await asyncio.sleep(
                max(0.0, began + number / (len(names) * per_second) - time.perf_counter())
            )
            body = bodies[number // len(names) % len(bodies)]
            tasks.append(asyncio.create_task(one(names[number % len(names)], body)))
        await asyncio.gather(*tasks)
    return took


@contextlib.contextmanager
def written(prompts: list[list[int]]) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts, file)
        file.flush()
        yield file.name


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[int(1000 * share) - 1]


def part_cores(alone: int, *others: int) -> None:
    """The process `alone` gets the last core, where there are two, and the others the rest."""
    *rest, last = sorted(os.sched_getaffinity(0))
    for pid in (alone, *others) if rest else ():
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {last} if pid == alone else rest)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-second", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[], help="a setting of the gateway's")
    arguments = parser.parse_args()
    engine, gateway = free_port(), free_port()
    python = (sys.executable, "-m")
    urls = {"direct": f"http://127.0.0.1:{engine}", "warmgate": f"http://127.0.0.1:{gateway}"}
    serve: tuple[str, ...] = (
        "router.cli",
        "serve",
        f"--port={gateway}",
        f"--tokenizer={MODEL_DIR}",
    )
    # the backend's /tokenize is a stub: nothing may be compared with it
    serve += ("--set=tokens.remote=false", "--set=tokens.judge_share=0")
    serve += tuple(f"--set={one}" for one in arguments.set)
    bodies = [chat(number, WORDS_OF_CHAT) for number in range(CHATS)]
    prompts = asyncio.run(tokenize(bodies))
    counts = [len(tokens) for tokens in prompts]
    print(f"chats of {min(counts)} to {max(counts)} tokens")
    bodies = [
        body.replace(b'"seed": 0', b'"seed": %d' % count)
        for body, count in zip(bodies, counts, strict=True)
    ]
    events = f"tcp://127.0.0.1:{free_port()}"
    with (
        written(prompts) as told,
        running(
            *python, "tests.bench.relay_backend", str(engine), "--events", events,
            "--tokens", told,
        ) as engine_pid,
        running(
            *python, *serve, f"--replica=id=r1,url={urls['direct']},events={events}"
        ) as gateway_pid,
    ):  # fmt: skip
        for url in urls.values():
            wait_for(url, 30.0)
        part_cores(gateway_pid, engine_pid, os.getpid())
        time.sleep(2.0)
        took = asyncio.run(measure(urls, bodies, arguments.per_second, arguments.seconds))
    report = {}
    for share in (0.5, 0.9, 0.99):
        direct, ours = (quantile(took[name], share) for name in ("direct", "warmgate"))
        report[f"p{100 * share:g}"] = {"direct": direct, "warmgate": ours, "added": ours - direct}
        print(f"p{100 * share:g}: direct {direct:.2f} ms, warmgate {ours:.2f} ms, "
              f"added {ours - direct:.2f} ms")  # fmt: skip
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
