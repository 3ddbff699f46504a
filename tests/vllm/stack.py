"""Two real vLLM replicas on the CPU, and routers in front of them, as processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

MODEL_NAME = "smollm2-135m"
BLOCK_SIZE = 32
_START_S = 240.0
_END_S = 60.0
_CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Installed:
    """What `make test-vllm` has set up. `logs`: a folder for what the processes write."""

    vllm: Path
    model: Path
    logs: Path


def installed() -> Installed | None:
    """Where the environment says that it is; None without WARMGATE_VLLM."""
    vllm, model = os.environ.get("WARMGATE_VLLM"), os.environ.get("WARMGATE_VLLM_MODEL")
    if not vllm or not model:
        return None
    logs = Path("build/logs")
    logs.mkdir(parents=True, exist_ok=True)
    return Installed(Path(vllm), Path(model), logs)


_PORT_KEYS = ("url", "events_url", "replay_url")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a vLLM listens; 0: a free port."""

    http: int = 0
    events: int = 0
    replay: int = 0


FREE_PORTS = Ports()
NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Replica:
    """A running vLLM, as its launcher's ready line describes it."""

    id: str
    process: "subprocess.Popen[bytes]"
    line: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.line["url"])

    @property
    def fixed_ports(self) -> "Ports":
        """Where it listens, for another one that takes its place."""
        line = self.line
        return Ports(*(int(line[key].rpartition(":")[2]) for key in _PORT_KEYS))

    def as_flag(self) -> str:
        """The value of the router's `--replica`."""
        line = self.line
        return (
            f"id={self.id},url={line['url']},events={line['events_url']},"
            f"replay={line['replay_url']},topic={line['topic']}"
        )

    def forget(self) -> None:
        """Empty its prefix cache, and make it say so.

        vLLM publishes the clearing with its next step only, so one step follows: a prompt too
        short to fill a block.
        """
        _post(f"{self.url}/reset_prefix_cache")
        _post(f"{self.url}/v1/completions", {"model": MODEL_NAME, "prompt": [1], "max_tokens": 1})


@contextmanager
def replicas(at: Installed, count: int = 2) -> Iterator[list[Replica]]:
    """Start `count` at once, each with a core of its own while there are enough."""
    with ExitStack() as stack:
        names = [f"r{number + 1}" for number in range(count)]
        cores = [str(number % (os.cpu_count() or 1)) for number in range(count)]
        processes = [
            stack.enter_context(_process(name, _launch(at, core), at.logs))
            for name, core in zip(names, cores, strict=True)
        ]
        yield [
            Replica(name, process, _ready_line(process, name))
            for name, process in zip(names, processes, strict=True)
        ]


@contextmanager
def replica_with(
    at: Installed, name: str, flags: Sequence[str], cores: str, ports: Ports = FREE_PORTS
) -> Iterator[Replica]:
    """One vLLM with flags of its own. `cores`: as --cpu-cores of the launcher."""
    with _process(name, _launch(at, cores, ports, flags), at.logs) as process:
        yield Replica(name, process, _ready_line(process, name))


@contextmanager
def silent_replica(at: Installed) -> Iterator[str]:
    """The URL of a vLLM that was started by hand, without events."""
    port = _free_port()
    command = [
        *(str(at.vllm), "serve", str(at.model), "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", MODEL_NAME, "--max-model-len", "1024"),
    ]
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    with _process("silent", command, at.logs, environ | {"HF_HUB_OFFLINE": "1"}):
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(f"{url}/health")
        yield url


@contextmanager
def router(at: Installed, targets: Sequence[Replica], policy: str, *options: str) -> Iterator[str]:
    """The URL of a router that is ready, with an index that has caught up."""
    with router_for(at, [target.as_flag() for target in targets], policy, *options) as url:
        yield url


@contextmanager
def router_for(at: Installed, targets: Sequence[str], policy: str, *options: str) -> Iterator[str]:
    """`router`, for replicas as `--replica` names them."""
    command = [
        *(sys.executable, "-m", "router.cli", "serve", "--port", "0", "--policy", policy),
        *("--tokenizer", str(at.model)),
        *(word for target in targets for word in ("--replica", target)),
        *options,
    ]
    with _process(f"router-{policy}", command, at.logs) as process:
        url = str(_ready_line(process, f"router-{policy}")["url"])
        _wait_until_ready(f"{url}/readyz")
        yield url


@contextmanager
def peer(at: Installed, targets: Sequence[Replica], python: Path, name: str) -> Iterator[str]:
    """The URL of another project's router, installed for `python`, with its cache-aware policy."""
    port = _free_port()
    command = [
        *(str(python), "-m", f"{name.replace('-', '_')}.launch_router"),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"),
        *("--prometheus-port", str(_free_port())),
        *("--worker-urls", *(target.url for target in targets)),
    ]
    with _process(name, command, at.logs):
        _wait_until_ready(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"


def _free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _launch(
    at: Installed, cores: str, ports: Ports = FREE_PORTS, flags: Sequence[str] = ()
) -> list[str]:
    return [
        *(sys.executable, "-m", "workers.cli", "vllm", "--vllm", str(at.vllm)),
        *("--events", f"tcp://*:{ports.events}", "--replay", f"tcp://*:{ports.replay}"),
        *("--cpu", "--cpu-cores", cores, "--cpu-kv-gib", "1"),
        str(at.model),
        *("--host", "127.0.0.1", "--port", str(ports.http), "--served-model-name", MODEL_NAME),
        *("--block-size", str(BLOCK_SIZE), "--max-num-seqs", "16", *flags),
    ]


@contextmanager
def _process(
    name: str, command: Sequence[str], logs: Path, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator["subprocess.Popen[bytes]"]:
    # VLLM_SERVER_DEV_MODE brings /reset_prefix_cache.
    environ = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", **variables}
    with (
        open(logs / f"vllm-{name}.log", "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=_END_S)


def _ready_line(process: "subprocess.Popen[bytes]", name: str) -> dict[str, Any]:
    # Its own time limit ends a start that hangs, and with it this read.
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{name} ended before it was ready; see build/logs/vllm-{name}.log"
    ready: dict[str, Any] = json.loads(line)
    return ready


def _wait_until_ready(url: str) -> None:
    give_up = time.monotonic() + _START_S
    while True:
        try:
            with urlopen(url, timeout=_CALL_S):
                return
        except (URLError, ConnectionError):
            assert time.monotonic() < give_up, f"{url} never said 200"
            time.sleep(0.1)


def _post(url: str, body: dict[str, Any] | None = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"content-type": "application/json"})
    with urlopen(request, timeout=_CALL_S) as reply:
        reply.read()
