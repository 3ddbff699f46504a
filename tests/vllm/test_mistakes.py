"""The self-test before real vLLM replicas: each mistake that one can make is called by its name."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import pytest
import zmq.asyncio

from router.events.sources import DialSources
from router.parity import Parity, Verdict
from router.replicas import Replica as Target
from router.tokens import LocalTokenizer
from tests.support.processes import MODEL_DIR
from tests.vllm import stack
from tests.vllm.conftest import Note
from tests.vllm.stack import BLOCK_SIZE, MODEL_NAME, Installed, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture
async def sources() -> AsyncIterator[tuple[aiohttp.ClientSession, DialSources]]:
    context = zmq.asyncio.Context()
    async with aiohttp.ClientSession() as session:
        yield session, DialSources(context, session)
    context.destroy(linger=0)


async def test_each_mistake_is_named(
    at: Installed,
    pair: list[Replica],
    sources: tuple[aiohttp.ClientSession, DialSources],
    tmp_path: Path,
    note: Note,
):
    session, dial = sources
    right, other = (_target(replica) for replica in pair)
    ours = LocalTokenizer.load(at.model)

    async def check(
        target: Target = right,
        tokenizer: LocalTokenizer = ours,
        model: str = MODEL_NAME,
        block_size: int = BLOCK_SIZE,
    ) -> str:
        parity = Parity(session, dial, lambda _: tokenizer, Random())
        return _mistake(await parity.check(target, [model], block_size))

    other_port = Target("r1", right.url, other.events_url, other.replay_url, right.topic)
    no_port = Target("r1", right.url, "tcp://127.0.0.1:9", None, right.topic)
    said = {
        "none": await check(),
        "none, by its URL alone": await check(Target("r1", right.url)),
        "wrong block size": await check(block_size=2 * BLOCK_SIZE),
        "wrong template": await check(tokenizer=_other_template(at.model, tmp_path / "template")),
        "wrong tokenizer": await check(tokenizer=LocalTokenizer.load(MODEL_DIR)),
        "wrong port": await check(no_port),
        "another engine's port": await check(other_port),
        "wrong model name": await check(model="gpt-4"),
    }
    with stack.silent_replica(at) as url:
        said["events off"] = await check(Target("r1", url))
    note("mistakes", said)
    begins = {
        "none": "",
        "none, by its URL alone": "",
        "wrong block size": f"replica r1 publishes block size {BLOCK_SIZE}, the index uses",
        "wrong template": "wrong chat template: token",
        "wrong tokenizer": "wrong tokenizer: token",
        "wrong port": "no event stream at tcp://127.0.0.1:9",
        "another engine's port": "no event came for a prompt of",
        "wrong model name": "wrong model name: tokens.models names 'gpt-4'",
        "events off": "it publishes no KV events",
    }
    assert {name: text[: len(begins[name])] for name, text in said.items()} == begins
    assert not said["none"]
    assert "--kv-events-config" in said["events off"]


def _mistake(verdict: Verdict) -> str:
    return "; ".join(verdict.mistakes)


def _target(replica: Replica) -> Target:
    line = replica.line
    return Target("r1", replica.url, line["events_url"], line["replay_url"], line["topic"])


def _other_template(model: Path, folder: Path) -> LocalTokenizer:
    """The model's own files, but for one word in the chat template."""
    folder.mkdir()
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(model / name, folder)
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = "Human: " + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return LocalTokenizer.load(folder)
