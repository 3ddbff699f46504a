"""The engines' own counters, before and after a run: a second opinion on what the client saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
import msgspec

SCRAPE_TIMEOUT_S: Final = 5.0

PROMPT: Final = ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total")
OUTPUT: Final = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
QUERIES: Final = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
HITS: Final = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
PREEMPTIONS: Final = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
TTFT: Final = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")


class EngineCounters(msgspec.Struct, frozen=True):
    """What one engine counted during the run, warm-up included. None: it has no such counter.

    `ttft_ms_mean` is the engine's own time to first token: without network, router and client.
    """

    url: str
    requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    hit_rate: float | None = None
    preemptions: int | None = None
    ttft_ms_mean: float | None = None


Sample = Mapping[str, float]


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus' text format: name → sum over all labels. What is no sample is passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0].strip()
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


async def scrape(urls: Sequence[str]) -> list[Sample | None]:
    """Each server's counters now; None for one that has none to show."""
    timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return list(await asyncio.gather(*(_scrape(session, url) for url in urls)))


async def _scrape(session: aiohttp.ClientSession, url: str) -> Sample | None:
    address = url if url.rstrip("/").endswith("/metrics") else url.rstrip("/") + "/metrics"
    try:
        async with session.get(address) as response:
            return read_metrics(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None


def counters(url: str, before: Sample | None, after: Sample | None) -> EngineCounters:
    """The differences; an engine that restarted in between has none."""
    if before is None or after is None:
        return EngineCounters(url)

    def grown(names: Sequence[str]) -> float | None:
        name = next((name for name in names if name in after), None)
        if name is None or after[name] < before.get(name, 0.0):
            return None
        return after[name] - before.get(name, 0.0)

    queries, hits = grown(QUERIES), grown(HITS)
    seconds, count = grown([f"{n}_sum" for n in TTFT]), grown([f"{n}_count" for n in TTFT])
    return EngineCounters(
        url=url,
        requests=_whole(count),
        prompt_tokens=_whole(grown(PROMPT)),
        output_tokens=_whole(grown(OUTPUT)),
        hit_rate=round(hits / queries, 5) if queries and hits is not None else None,
        preemptions=_whole(grown(PREEMPTIONS)),
        ttft_ms_mean=round(1e3 * seconds / count, 3) if count and seconds is not None else None,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
