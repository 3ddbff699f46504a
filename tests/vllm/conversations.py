"""Conversations that keep growing, a few at a time: what a router's choice is worth, measured."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.vllm.client import Answer, ask
from tests.vllm.words import sentence

SESSION_HEADER = "x-session-id"
_CALL_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Workload:
    """Each conversation has a system prompt of its own. `at_once`: generations in flight."""

    model: str
    seed: int
    conversations: int = 10
    turns: int = 4
    at_once: int = 3
    system_words: int = 500
    user_words: int = 40
    reply_tokens: int = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """`hit_rate`: cached prompt tokens of all prompt tokens, as the engines reported them."""

    hit_rate: float
    p50_ttft_s: float
    p95_ttft_s: float
    mean_ttft_s: float
    wall_s: float
    answers: tuple[Answer, ...]

    def figures(self) -> dict[str, float]:
        """The numbers alone, rounded, for a report."""
        return {
            "hit_rate": round(self.hit_rate, 4),
            "p50_ttft_ms": round(self.p50_ttft_s * 1000),
            "p95_ttft_ms": round(self.p95_ttft_s * 1000),
            "mean_ttft_ms": round(self.mean_ttft_s * 1000),
            "wall_s": round(self.wall_s, 1),
        }


async def converse(url: str, workload: Workload, *, name_sessions: bool = False) -> Outcome:
    """Hold all conversations. `name_sessions`: send each one's name in `x-session-id`.

    The seed fixes every word and pause, so two runs differ in their routing and replies alone.
    """
    rng = random.Random(workload.seed)
    gate = asyncio.Semaphore(workload.at_once)
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        started = loop.time()
        talks = [
            _Conversation(workload, number, random.Random(rng.random()), gate, name_sessions)
            for number in range(workload.conversations)
        ]
        answers = await asyncio.gather(*(talk.hold(session, url) for talk in talks))
        return _outcome([a for talk in answers for a in talk], loop.time() - started)


class _Conversation:
    def __init__(
        self,
        workload: Workload,
        number: int,
        rng: random.Random,
        gate: asyncio.Semaphore,
        is_named: bool,
    ) -> None:
        self._workload = workload
        self._rng = rng
        self._gate = gate
        name = f"{workload.seed}-{number}"
        self._headers = {SESSION_HEADER: name} if is_named else None
        system = f"You serve customer {name}. {sentence(rng, workload.system_words)}"
        self._messages = [{"role": "system", "content": system}]

    async def hold(self, session: aiohttp.ClientSession, url: str) -> list[Answer]:
        answers = []
        for _ in range(self._workload.turns):
            self._say("user", sentence(self._rng, self._workload.user_words))
            async with self._gate:
                answer = await ask(session, url, self._body(), self._headers)
            self._say("assistant", answer.text or "ok")
            answers.append(answer)
            # A person reads before the next question.
            await asyncio.sleep(self._rng.uniform(0.2, 0.8))
        return answers

    def _say(self, role: str, content: str) -> None:
        self._messages.append({"role": role, "content": content})

    def _body(self) -> dict[str, Any]:
        return {
            "model": self._workload.model,
            "messages": self._messages,
            "max_tokens": self._workload.reply_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _outcome(answers: Sequence[Answer], wall_s: float) -> Outcome:
    ttfts = sorted(answer.ttft_s for answer in answers)
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    return Outcome(
        hit_rate=sum(answer.cached_tokens for answer in answers) / prompt_tokens,
        p50_ttft_s=percentile(ttfts, 0.50),
        p95_ttft_s=percentile(ttfts, 0.95),
        mean_ttft_s=sum(ttfts) / len(ttfts),
        wall_s=wall_s,
        answers=tuple(answers),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank: the smallest value that `share` of all values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
