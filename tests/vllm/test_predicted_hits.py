"""What the router predicts a replica will reuse, against what that replica says it has reused."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from router.blocks.hashing import as_tokens, hash_blocks, prefix_seed
from tests.vllm.client import Answer, Body, ask
from tests.vllm.conftest import Note
from tests.vllm.event_log import EventLog, following
from tests.vllm.mixture import Talk, talks
from tests.vllm.stack import BLOCK_SIZE, Installed, Replica, router

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

NEEDED_SHARE = 0.95
AGREED = "agreed"
LATE = "the blocks were announced after the request was sent"
BEHIND = "the router had not yet read events that had arrived"
TOKENS = "the router saw other tokens than the engine"
GONE = "the engine did not reuse what it had announced"
UNEXPLAINED = "unexplained"
FAULTS = {TOKENS, GONE, UNEXPLAINED}


@dataclass(frozen=True, slots=True)
class Checked:
    """One request: blocks it was predicted to hit, blocks it hit, and why they differ.

    `was_blind`: the router had no prefix, because no replica had told its block size yet, or
    because tokenizing took too long.
    """

    kind: str
    reason: str | None
    predicted: int
    hit: int
    cause: str
    was_blind: bool


@pytest.fixture
def logs(pair: list[Replica]) -> Iterator[dict[str, EventLog]]:
    """A log of each replica's events, from an empty cache on."""
    with ExitStack() as stack:
        logs = {
            replica.id: stack.enter_context(following(replica.line["events_url"]))
            for replica in pair
        }
        give_up = time.monotonic() + 30
        for replica in pair:
            # Until it is subscribed, a log misses what is published.
            while not logs[replica.id].clearings:
                assert time.monotonic() < give_up, f"{replica.id} publishes nothing"
                replica.forget()
                time.sleep(0.2)
        yield logs


@pytest.mark.parametrize("at_once", [1, 3])
async def test_predicted_hits_are_the_reported_ones(
    at: Installed, pair: list[Replica], logs: dict[str, EventLog], note: Note, at_once: int
):
    with router(at, pair, "cache-aware") as url:
        checked = await _hold(url, pair, logs, at_once)
    causes = Counter(one.cause for one in checked)
    agreed = causes[AGREED] / len(checked)
    note(
        f"predicted hits, {at_once} at once",
        {
            "requests": len(checked),
            "agreed": round(agreed, 4),
            "requests_with_a_hit": sum(one.hit > 0 for one in checked),
            "requests_without_a_prefix": sum(one.was_blind for one in checked),
            "kinds": Counter(one.kind for one in checked),
            "differences": {cause: n for cause, n in causes.items() if cause != AGREED},
        },
    )
    assert len(checked) >= 60
    assert sum(one.hit > 0 for one in checked) >= len(checked) // 2
    assert not FAULTS & causes.keys(), [one for one in checked if one.cause in FAULTS]
    # Others' blocks may be reused before their events are out, so only one at a time is held to it.
    assert at_once > 1 or agreed >= NEEDED_SHARE, causes


async def _hold(
    url: str, pair: list[Replica], logs: Mapping[str, EventLog], at_once: int
) -> list[Checked]:
    gate = asyncio.Semaphore(at_once)
    urls = {replica.id: replica.url for replica in pair}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def hold(talk: Talk) -> list[Checked]:
            checked = []
            for _ in range(talk.turns):
                async with gate:
                    body = talk.next_body()
                    answer = await ask(session, url, body)
                assert answer.replica is not None, "the router named no replica"
                tokens = await _tokens(session, urls[answer.replica], body)
                checked.append(_check(talk, answer, tokens, logs[answer.replica]))
                talk.content.replied(answer.text)
            return checked

        held = await asyncio.gather(*(hold(talk) for talk in talks(seed=at_once)))
    return [one for checked in held for one in checked]


async def _tokens(session: aiohttp.ClientSession, url: str, body: Body) -> list[int]:
    """The prompt's ids as the engine sees them."""
    if isinstance(body.get("prompt"), list):
        return list(body["prompt"])
    asked: dict[str, Any] = {key: body[key] for key in ("messages", "prompt") if key in body}
    async with session.post(f"{url}/tokenize", json=asked) as reply:
        assert reply.status == 200, await reply.text()
        return list((await reply.json())["tokens"])


def _check(talk: Talk, answer: Answer, tokens: list[int], log: EventLog) -> Checked:
    prefix = hash_blocks(as_tokens(tokens), BLOCK_SIZE, prefix_seed(talk.salt))
    # An engine computes at least the last token, so a prompt never hits to its very end.
    most = (answer.prompt_tokens - 1) // BLOCK_SIZE
    predicted = min(answer.matched_blocks or 0, most)
    hit = answer.cached_tokens // BLOCK_SIZE
    told_before = min(log.leading_blocks(prefix, answer.sent_at), most)
    told_since = min(log.leading_blocks(prefix, time.monotonic()), most)
    was_blind = not answer.prompt_blocks and bool(prefix)
    causes = (
        (not was_blind and answer.prompt_blocks != len(prefix), TOKENS),
        (answer.prompt_tokens != len(tokens), TOKENS),
        (predicted == hit, AGREED),
        (predicted > hit, GONE),
        (predicted < told_before, BEHIND),
        (hit <= told_since, LATE),
        (True, UNEXPLAINED),
    )
    cause = next(cause for applies, cause in causes if applies)
    return Checked(talk.kind, answer.reason, predicted, hit, cause, was_blind)
