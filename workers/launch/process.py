"""One vLLM process: start it, pass signals on, report when it is ready, end as it ends."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

import aiohttp

from workers.launch.checks import Api, NotVisible, Publisher, Seen, check, reachable
from workers.launch.flags import Flags, Launch, command, http_address

log = logging.getLogger(__name__)

FAILED: Final = 1
NOT_FOUND: Final = 127  # as shells say it
_STOP_GRACE_S: Final = 30.0
_CALL_TIMEOUT_S: Final = 30.0
# A terminal that closes should drain too: SIGHUP would end vLLM at once.
_PASSED_ON: Final = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}

ReadyLine = dict[str, Any]


async def run(
    launch: Launch,
    environ: Mapping[str, str],
    report: Callable[[ReadyLine], None],
    *,
    advertise: str = "127.0.0.1",
    start_timeout_s: float = 1800.0,
) -> int:
    """Run vLLM to its end and return its exit code, 128 + n if signal n ended it.

    `report` is called once, when vLLM is healthy and every check has passed. If it is not healthy
    within `start_timeout_s`, or fails a check, it is stopped and the code is 1. `advertise`: the
    host that the reported addresses name.
    """
    words = command(launch)
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    with _received(signals):
        try:
            process = await _spawn(words, environ)
        except FileNotFoundError:
            log.error("%s: no such program; install vllm, or name it: --vllm PATH", words[0])
            return NOT_FOUND
        passing = asyncio.create_task(_pass_on(signals, process))
        try:
            ready = _wait_until_ready(launch, environ, advertise)
            return await _watch(process, asyncio.wait_for(ready, start_timeout_s), report)
        finally:
            passing.cancel()
            _kill_all(process)


async def _spawn(words: list[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    # In a process group of its own, so that Ctrl-C reaches vLLM once, through us. What it writes
    # to stdout is log; ours carries the ready line alone.
    return await asyncio.create_subprocess_exec(
        *words,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,
        process_group=0,
    )


async def _watch(
    process: asyncio.subprocess.Process,
    ready: Coroutine[Any, Any, ReadyLine],
    report: Callable[[ReadyLine], None],
) -> int:
    starting = asyncio.ensure_future(ready)
    exited = asyncio.ensure_future(process.wait())
    await asyncio.wait({starting, exited}, return_when=asyncio.FIRST_COMPLETED)
    if exited.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        log.error("vLLM ended with code %d before it was ready", exited.result())
        return _as_shell(exited.result())
    try:
        line = starting.result()
    except (NotVisible, TimeoutError, aiohttp.ClientError) as exc:
        log.error("%s", _explain(exc))
        await _stop(process)
        return FAILED
    report(line | {"pid": os.getpid(), "engine_pid": process.pid})
    return _as_shell(await exited)


async def _wait_until_ready(
    launch: Launch, environ: Mapping[str, str], advertise: str
) -> ReadyLine:
    scheme, host, port = http_address(launch)
    key = Flags(launch.flags).value("--api-key") or environ.get("VLLM_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S)
    # A certificate names the host that clients use, seldom the loopback address.
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        api = Api(session, f"{scheme}://{host}:{port}")
        await api.wait_until_healthy()
        seen = await check(api, launch)
    return _ready_line(launch, seen, f"{scheme}://{advertise}:{port}", advertise)


def _ready_line(launch: Launch, seen: Seen, url: str, advertise: str) -> ReadyLine:
    all_ranks = [_addresses(publisher, advertise) for publisher in seen.publishers]
    return {
        "url": url,
        **all_ranks[0],
        "topic": launch.topic,
        "model": seen.model,
        "max_model_len": seen.max_model_len,
        "block_size": seen.block_size,
        "ranks": all_ranks,
    }


def _addresses(publisher: Publisher, advertise: str) -> dict[str, str]:
    return {
        "events_url": reachable(publisher.events, advertise),
        "replay_url": reachable(publisher.replay, advertise),
    }


def _explain(exc: Exception) -> str:
    if isinstance(exc, NotVisible):
        return str(exc)
    if isinstance(exc, TimeoutError):
        return "vLLM was not ready in time; --start-timeout-s gives it longer"
    return f"vLLM is up but a check failed: {exc}"


@contextlib.contextmanager
def _received(signals: "asyncio.Queue[signal.Signals]") -> Iterator[None]:
    """Signals wait in the queue, also those that come before vLLM is there to take them."""
    loop = asyncio.get_running_loop()
    for signum in _PASSED_ON:
        loop.add_signal_handler(signum, signals.put_nowait, signum)
    try:
        yield
    finally:
        for signum in _PASSED_ON:
            loop.remove_signal_handler(signum)


async def _pass_on(
    signals: "asyncio.Queue[signal.Signals]", process: asyncio.subprocess.Process
) -> None:
    while True:
        signum = await signals.get()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(_PASSED_ON[signum])


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STOP_GRACE_S)


def _kill_all(process: asyncio.subprocess.Process) -> None:
    """End what vLLM left behind: an engine process that lost its parent may keep its GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _as_shell(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode
