"""A stand-in for the `vllm` command: a process with its sockets and its manners, without a model.

It takes `serve MODEL [flags]`, writes down how it was called, and serves what the launcher asks
for. The environment variable FAKE_VLLM holds its character as JSON; see `Character`.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web

from router.blocks.wire import decode_replay_request, encode_replay

ROOT = Path(__file__).resolve().parents[2]


class Character(msgspec.Struct):
    """`sources`: what /kv_event_sources answers: "stated", "missing" (404) or "empty"."""

    record: str
    sources: str = "stated"
    prefix_caching: bool = True
    has_stats: bool = True
    replays: bool = True
    healthy: bool = True
    topic: str | None = None
    exit_at_once: int | None = None
    exit_code: int = 0
    signals_to_exit: int = 1


def install(folder: Path, **character: Any) -> tuple[Path, Path, dict[str, str]]:
    """Put the command into a folder: (its path, what it records to, the environment it needs)."""
    script, record = folder / "vllm", folder / "record.jsonl"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.fake_vllm "$@"\n')
    script.chmod(0o755)
    packed = msgspec.json.encode(Character(record=str(record), **character)).decode()
    return script, record, {"FAKE_VLLM": packed, "PYTHONPATH": str(ROOT)}


def recorded(record: Path) -> list[dict[str, Any]]:
    """What it noted: first its arguments and environment, then each signal."""
    return [json.loads(line) for line in record.read_text().splitlines()]


class Server:
    def __init__(self, args: argparse.Namespace, character: Character) -> None:
        self.args = args
        self.character = character
        self.events = json.loads(args.kv_events_config)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        if self.character.sources != "missing":
            app.router.add_get("/kv_event_sources", self.event_sources)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.character.healthy else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.character.has_stats:
            return web.Response(text="")
        cached = self.character.prefix_caching
        labels = f'block_size="{self.args.block_size}",enable_prefix_caching="{cached}",engine="0"'
        name = "vllm:cache_config_info"
        return web.Response(text=f"# TYPE {name} gauge\n{name}{{{labels}}} 1.0\n")

    async def models(self, request: web.Request) -> web.Response:
        if (
            self.args.api_key
            and request.headers.get("authorization") != f"Bearer {self.args.api_key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        name = self.args.served_model_name or self.args.model
        return web.json_response({"data": [{"id": name, "max_model_len": 8192}]})

    async def event_sources(self, _: web.Request) -> web.Response:
        if self.character.sources == "empty":
            return web.json_response({})
        topic = self.character.topic or self.events["topic"]
        return web.json_response({"0": self.events | {"topic": topic}})

    async def answer_replays(self, router: zmq.asyncio.Socket) -> None:
        while True:
            peer, _ = decode_replay_request(await router.recv_multipart())
            if self.character.replays:
                await router.send_multipart([peer, *encode_replay(None)])


async def serve(server: Server, note: Any) -> int:
    stop = asyncio.Event()
    left = server.character.signals_to_exit

    def on_signal(signum: signal.Signals) -> None:
        nonlocal left
        note({"signal": signum.name})
        left -= 1
        if left <= 0:
            stop.set()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal, signum)
    context = zmq.asyncio.Context()
    context.linger = 0
    publisher, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    publisher.bind(server.events["endpoint"])
    router.bind(server.events["replay_endpoint"])
    replaying = asyncio.create_task(server.answer_replays(router))
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", server.args.port).start()
    note({"listening": server.args.port})
    await stop.wait()
    replaying.cancel()
    await runner.cleanup()
    context.destroy()
    return server.character.exit_code


def main() -> None:
    character = msgspec.json.decode(os.environ["FAKE_VLLM"], type=Character)
    with open(character.record, "a", buffering=1) as record:

        def note(fact: dict[str, Any]) -> None:
            record.write(json.dumps(fact) + "\n")

        shown = {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "HF_"))}
        note({"argv": sys.argv[1:], "environ": shown})
        sys.stdout.write("INFO a line of log on stdout, as vLLM has\n")
        sys.stdout.flush()
        if character.exit_at_once is not None:
            sys.exit(character.exit_at_once)
        parser = argparse.ArgumentParser()
        parser.add_argument("command")
        parser.add_argument("model")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--block-size", type=int, default=16)
        parser.add_argument("--served-model-name")
        parser.add_argument("--api-key")
        parser.add_argument("--kv-events-config", required=True)
        args, _ = parser.parse_known_args()
        sys.exit(asyncio.run(serve(Server(args, character), note)))


if __name__ == "__main__":
    main()
