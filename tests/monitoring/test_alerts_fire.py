"""Each alert fires when a real router's service really breaks, and is silent before.

A real Prometheus scrapes the router and evaluates our rules, with shorter windows. `make
test-monitoring`: two minutes.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from router.tenants import hash_key
from tests.support.processes import MODEL_DIR, Fleet, fleet
from tests.support.prometheus import Prometheus, binary, hurried_rules, rules, scraping

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("PROMETHEUS_BIN") or binary("prometheus") is None,
        reason="needs PROMETHEUS_BIN (make test-monitoring)",
    ),
    pytest.mark.timeout(120),
]
KEY = "wg-of-a-test"
FAST = ("--speed-up", "20")
FIRES_WITHIN_S = 45.0


@dataclass
class Broken:
    """How one service is started, and what breaks it. `breaks` goes on until it is cancelled."""

    alerts: set[str]
    breaks: Callable[[Fleet], Coroutine[None, None, None]]
    engines: int = 1
    engine_flags: Sequence[str] = FAST
    router_flags: Callable[[Path], Sequence[str]] = lambda directory: ()


async def ask(run, prompt, *, wait=True, max_tokens=2):
    """A streamed completion; errors of a broken service are what these tests are about."""
    body = {"model": run.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    url = run.router.url + "/v1/completions"
    async with run.session.post(url, json=body, headers=headers) as reply:
        await reply.read() if wait else None


def text(number, words=300):
    return f"Number {number}. " + "The quick brown fox jumps over the lazy dog. " * (words // 9)


async def fault(run, engine=0, **faults):
    url = run.engines[engine].url + "/faults"
    async with run.session.post(url, data=json.dumps(faults)) as reply:
        assert reply.status == 200, await reply.text()


async def load(run, *, of=4, pause_s=0.05):
    """`of` prompts over and over."""
    number = 0
    while True:
        await ask(run, text(number % of))
        number += 1
        await asyncio.sleep(pause_s)


async def all_engines_die(run):
    for engine in run.engines:
        await engine.kill()


async def replies_break_off(run):
    await fault(run, http={"reset": 0.3, "after_tokens": 1})
    await load(run)


async def caches_are_lost_without_a_word(run):
    """What was stored is told, what is dropped is not: the index goes on promising it."""
    for number in range(40):
        await ask(run, text(number))
    await fault(run, events={"lose": 1.0, "lose_from_replay": True})
    while True:
        for number in range(40):
            async with run.session.post(run.engines[0].url + "/reset_prefix_cache") as reply:
                await reply.read()
            await ask(run, text(number))


async def events_are_lost_for_good(run):
    await fault(run, events={"lose": 0.5, "lose_from_replay": True})
    number = 0
    while True:
        await ask(run, text(number))
        number += 1


async def all_are_slow(run):
    async def client(number):
        while True:
            await ask(run, text(number := number + 100))

    await asyncio.gather(*(client(number) for number in range(8)))


async def a_tenant_spends(run):
    await load(run, pause_s=0.2)


async def long_prompts(run):
    number = 0
    while True:
        await ask(run, text(number, words=900))
        number += 1


def keys(directory):
    file = directory / "keys.yaml"
    tenant = {"id": "t", "keys": [hash_key(KEY)], "requests_per_minute": 120}
    file.write_text(yaml.safe_dump({"tenants": [tenant]}))
    return [f"--set=tenants.keys_file={file}"]


def another_tokenizer(directory):
    """The engine's own, without the later half of its merges."""
    other = directory / "tokenizer"
    shutil.copytree(MODEL_DIR, other)
    tree = json.loads((other / "tokenizer.json").read_text())
    merges = tree["model"]["merges"]
    del merges[len(merges) // 2 :]
    (other / "tokenizer.json").write_text(json.dumps(tree))
    return ["--tokenizer", str(other)]


def small_index(directory):
    return [f"--set=index.max_bytes={2**20}"]


CAUSES = {
    "no replica": Broken({"WarmgateNoReplica"}, all_engines_die, engines=2),
    "requests fail": Broken({"WarmgateRequestsFail"}, replies_break_off),
    "hits": Broken(
        {"WarmgateHitsBelowPrediction", "WarmgateHitsFarBelowReachable"},
        caches_are_lost_without_a_word,
    ),
    "events": Broken({"WarmgateIndexInDoubt", "WarmgateEventGaps"}, events_are_lost_for_good),
    "slow": Broken({"WarmgateAllReplicasSlow"}, all_are_slow, 2, ("--speed-up", "0.02")),
    "budget": Broken({"WarmgateBudgetNear"}, a_tenant_spends, router_flags=keys),
    "tokenizer": Broken({"WarmgateTokenizerDoubted"}, load, router_flags=another_tokenizer),
    "index": Broken({"WarmgateIndexFull"}, long_prompts, 2, (*FAST, "--block-size=1"), small_index),
}


@asynccontextmanager
async def watched(cause: Broken, directory: Path):
    (directory / "rules.yaml").write_text(hurried_rules())
    flags = cause.router_flags(directory)
    async with (
        fleet(cause.engines, engine_flags=cause.engine_flags, router_flags=flags) as run,
        scraping(
            run.router.url.removeprefix("http://"), directory, directory / "rules.yaml"
        ) as prometheus,
    ):
        yield run, prometheus


async def fired(prometheus: Prometheus, wanted: set[str], breaking: asyncio.Task[None]):
    """All alerts that fired until the wanted ones had, and after how many seconds that was."""
    loop = asyncio.get_running_loop()
    began, seen = loop.time(), set[str]()
    while not wanted <= seen and loop.time() < began + FIRES_WITHIN_S:
        if breaking.done() and (exc := breaking.exception()) is not None:
            raise exc
        seen |= await prometheus.firing()
        await asyncio.sleep(0.2)
    return seen, loop.time() - began


def test_every_alert_has_a_cause():
    named = {rule["alert"] for rule in rules() if "alert" in rule}
    assert named == set[str]().union(*(cause.alerts for cause in CAUSES.values()))


@pytest.mark.parametrize("name", CAUSES)
async def test_an_alert_fires_when_its_cause_is_there(name, tmp_path):
    cause = CAUSES[name]
    async with watched(cause, tmp_path) as (run, prometheus):
        assert not await prometheus.firing()
        breaking = asyncio.create_task(cause.breaks(run))
        try:
            seen, took_s = await fired(prometheus, cause.alerts, breaking)
        finally:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
    print(f"\n{name}: {', '.join(sorted(seen))} after {took_s:.1f} s")
    assert cause.alerts <= seen


async def test_none_fires_while_a_loaded_service_is_well(tmp_path):
    cause = Broken(set(), load, engines=2)
    async with watched(cause, tmp_path) as (run, prometheus):
        loading = asyncio.create_task(load(run))
        try:
            seen, _ = await asyncio.wait_for(sampled(prometheus, loading, for_s=15.0), 40)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
    assert seen == set()


async def sampled(prometheus, loading, for_s):
    end, seen, looks = asyncio.get_running_loop().time() + for_s, set[str](), 0
    while asyncio.get_running_loop().time() < end:
        assert not loading.done(), loading
        seen |= await prometheus.firing()
        looks += 1
        await asyncio.sleep(0.5)
    assert await prometheus.query("warmgate:hit_ratio:rate5m")
    return seen, looks
