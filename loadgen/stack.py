"""A router and its embedded engines as processes, started afresh and ended by their ids."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import aiohttp
import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READY_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
END_TIMEOUT_S: Final = 5.0
LOG_TAIL_CHARACTERS: Final = 800


class StackError(Exception):
    """A process didn't come up; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """`num_blocks` of `block_size` tokens is one engine's whole cache; `log_dir` gets stderr."""

    log_dir: Path
    replicas: int = 4
    profile: str = "a100-80-8b-bf16"
    speed_up: float = 1.0
    num_blocks: int = 4096
    block_size: int = 16
    model: str = "embedded"


@dataclass(frozen=True, slots=True)
class Stack:
    """Where it listens. `tokenize_url` is an engine's, for /tokenize; `metrics_urls` are all's."""

    url: str
    model: str
    replica_ids: tuple[str, ...]
    tokenize_url: str
    metrics_urls: tuple[str, ...] = ()


class _EngineReady(msgspec.Struct):
    url: str
    model: str
    events_url: str | None = None
    replay_url: str | None = None


class _RouterReady(msgspec.Struct):
    url: str


@asynccontextmanager
async def open_stack(options: StackOptions, policy: str) -> AsyncIterator[Stack]:
    """Engines with empty caches, and a router with `policy` that is ready. StackError otherwise."""
    options.log_dir.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as exits:
        starts = [
            _start(exits, f"{policy}-r{n + 1}", _engine_command(options), options.log_dir)
            for n in range(options.replicas)
        ]
        # All of them to their end: what is half started could not be stopped.
        lines = await asyncio.gather(*starts, return_exceptions=True)
        engines = [_engine(line) for line in lines]
        replicas = {f"r{n + 1}": engine for n, engine in enumerate(engines)}
        command = _router_command(policy, replicas)
        line = await _start(exits, f"{policy}-router", command, options.log_dir)
        url = msgspec.json.decode(line, type=_RouterReady).url
        await _until_ready(f"{url}/readyz")
        urls = tuple(engine.url for engine in engines)
        yield Stack(url, engines[0].model, tuple(replicas), urls[0], urls)


def _engine(line: bytes | BaseException) -> _EngineReady:
    if isinstance(line, BaseException):
        raise line
    return msgspec.json.decode(line, type=_EngineReady)


def tokenizer_path() -> Path:
    """The embedded engine's tokenizer, found without importing the engine."""
    spec = importlib.util.find_spec("workers")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("the package `workers` is not installed")
    return Path(spec.submodule_search_locations[0]) / "engine" / "model"


def _engine_command(options: StackOptions) -> list[str]:
    return [
        *("-m", "workers.cli", "engine"),
        *("--port", "0", "--events-port", "0", "--replay-port", "0"),
        *("--profile", options.profile, "--speed-up", str(options.speed_up)),
        *("--num-blocks", str(options.num_blocks), "--block-size", str(options.block_size)),
        *("--model-name", options.model),
    ]


def _router_command(policy: str, replicas: dict[str, _EngineReady]) -> list[str]:
    command = ["-m", "router.cli", "serve", "--port", "0", "--policy", policy]
    command += ["--tokenizer", str(tokenizer_path())]
    for replica_id, engine in replicas.items():
        fields = {
            "id": replica_id,
            "url": engine.url,
            "events": engine.events_url,
            "replay": engine.replay_url,
        }
        command += ["--replica", ",".join(f"{k}={v}" for k, v in fields.items() if v)]
    return command


async def _start(
    exits: AsyncExitStack, name: str, arguments: Sequence[str], log_dir: Path
) -> bytes:
    """Start a module; its first line on stdout says that it is ready. The rest goes to the log."""
    log_path = log_dir / f"{name}.log"
    log = exits.enter_context(log_path.open("wb"))
    process = await _spawn(arguments, log)
    exits.push_async_callback(_end, process)
    stdout = process.stdout
    if stdout is None:
        raise StackError(f"{name}: no stdout")
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await stdout.readline()
    except TimeoutError as exc:
        raise StackError(f"{name}: not ready after {READY_TIMEOUT_S:.0f} s") from exc
    if not line.strip():
        raise StackError(f"{name} ended: {_tail(log_path)}")
    reader = asyncio.ensure_future(_copy(stdout, log))
    exits.push_async_callback(_finish, reader)
    return line


async def _spawn(arguments: Sequence[str], log: IO[bytes]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        # A Ctrl-C is for this program; it ends the others itself, in order.
        start_new_session=True,
    )


async def _copy(stdout: asyncio.StreamReader, log: IO[bytes]) -> None:
    while line := await stdout.readline():
        log.write(line)


async def _finish(reader: asyncio.Future[None]) -> None:
    reader.cancel()
    await asyncio.wait({reader})


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _until_ready(url: str) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), aiohttp.ClientSession() as session:
            while not await _is_ready(session, url):  # noqa: ASYNC110  (another process)
                await asyncio.sleep(POLL_S)
    except TimeoutError as exc:
        raise StackError(f"{url} is not 200 after {READY_TIMEOUT_S:.0f} s") from exc


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _tail(path: Path) -> str:
    return path.read_text("utf-8", "replace")[-LOG_TAIL_CHARACTERS:].strip()
