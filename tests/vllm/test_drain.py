"""SIGTERM to the launcher of a real vLLM while it generates."""

import asyncio
import signal

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.client import ask
from tests.vllm.conftest import Note
from tests.vllm.stack import MODEL_NAME, Installed, replicas

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

N_TOKENS = 60


async def test_a_stream_in_flight_is_finished_after_sigterm(at: Installed, note: Note):
    body = {
        "model": MODEL_NAME,
        "prompt": "Once upon a time",
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with replicas(at, count=1) as (replica,):
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(ask(session, replica.url, body))
            await _until_running(session, replica.url)
            replica.process.send_signal(signal.SIGTERM)
            answer = await asking
        code = await asyncio.to_thread(replica.process.wait, 60)
    note("drain", {"tokens_asked": N_TOKENS, "tokens": answer.completion_tokens, "exit_code": code})
    assert answer.completion_tokens == N_TOKENS
    assert code == 0


async def _until_running(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while not await _running(session, url):
            pass  # each look is a call that takes its time


async def _running(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/metrics") as reply:
        families = text_string_to_metric_families(await reply.text())
    found = [f for f in families if f.name == "vllm:num_requests_running"]
    return any(sample.value for family in found for sample in family.samples)
