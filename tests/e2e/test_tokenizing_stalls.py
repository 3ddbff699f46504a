"""A template that loops or breaks costs its request a moment and a prefix, others nothing."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml

from tests.support.processes import MODEL_DIR, Fleet, fleet, until
from tests.support.streaming import Streamed, chat

DEADLINE_MS = 400
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
STALLS = (
    "{% if 'LOOP' in messages[0].content %}" + LOOP + "{% endif %}"
    "{% if 'BREAK' in messages[0].content %}{{ messages[0].nothing.at.all }}{% endif %}"
)


def template() -> str:
    """The engine's own template behind one that stalls when it is told to."""
    file = MODEL_DIR / "chat_template.jinja"
    if file.exists():
        return STALLS + file.read_text("utf-8")
    config = json.loads((MODEL_DIR / "tokenizer_config.json").read_text("utf-8"))
    return STALLS + str(config["chat_template"])


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "router.yaml"
    engines = {"warmgate-tiny": {"chat_template": template()}}
    tokens = {"engines": engines, "remote": False, "deadline_ms": DEADLINE_MS}
    file.write_text(yaml.safe_dump({"tokens": tokens}), "utf-8")
    return str(file)


async def ask(run: Fleet, text: str) -> tuple[Streamed, float]:
    started = time.monotonic()
    body = [{"role": "user", "content": text * 40}]
    reply = await chat(run.session, run.router.url, run.model, body, max_tokens=2)
    return reply, (time.monotonic() - started) * 1e3


async def failures(run: Fleet) -> dict[str, float]:
    async with run.session.get(run.router.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    named = [line for line in lines if line.startswith("warmgate_tokenize_failures_total{")]
    counted = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in named}
    return {reason: count for reason, count in counted.items() if count}


async def test_stalls_are_bounded_counted_and_spare_the_others(config):
    flags = ("--profile", "laptop", "--speed-up", "20")
    async with fleet(1, engine_flags=flags, router_flags=("--config", config)) as run:
        await ask(run, "a quiet sentence ")

        async def is_predicted() -> bool:
            reply, _ = await ask(run, "a quiet sentence ")
            return bool(reply.predicted_hit)

        await until(is_predicted)
        asked = ["LOOP ", "BREAK ", "a quiet sentence "] * 4
        replies = await asyncio.gather(*(ask(run, text) for text in asked))
        assert {reply.status for reply, _ in replies} == {200}
        assert max(took for _, took in replies) < DEADLINE_MS + 4000
        quiet = [reply for text, (reply, _) in zip(asked, replies, strict=True) if "quiet" in text]
        assert all(reply.predicted_hit for reply in quiet)
        counted = await failures(run)
        assert counted["template_error"] >= 1
        assert set(counted) <= {"template_error", "timeout"}
        assert sum(counted.values()) >= 8
        reply, _ = await ask(run, "a quiet sentence ")
        assert reply.predicted_hit
