"""The command line that vLLM is started with, and which of the user's flags contradict it."""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Final

ANY_PORT: Final = "0"
DEFAULT_PORT: Final = "8000"
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")
_DEFAULT_DRAIN_S: Final = 30
_PORTS: Final = range(20_000, 30_000)

_REFUSED: Final = {
    "--kv-events-config": "the launcher writes it; put --events, --replay or --topic before MODEL",
    "--no-enable-prefix-caching": "with no prefix cache there is nothing to publish; leave it out",
    "--no-enable-prompt-tokens-details": (
        "then replies don't say how many tokens were cached and no prediction can be checked; "
        "leave it out"
    ),
    "--disable-log-stats": "then /metrics is empty and nothing can be checked; leave it out",
    "--headless": "such a node has no HTTP API; start it with vllm itself",
    "--uds": "a router needs a TCP address; use --host and --port",
}


class LaunchRefused(ValueError):
    """The user's flags contradict what the launcher promises. The text says what to change."""


class Flags:
    """vLLM's flags as the user wrote them, with the spellings that vLLM's own parser accepts."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._names = [_name(word) for word in self._words]

    def __contains__(self, name: str) -> bool:
        """Also true for a dotted part of it: `--kv-events-config.topic` is a kv-events-config."""
        return any(n == name or n.startswith(f"{name}.") for n in self._names)

    def value(self, name: str) -> str | None:
        """The last value given, written as `--name value` or as `--name=value`."""
        for at in reversed(range(len(self._words))):
            if self._names[at] == name:
                return _value(self._words[at:])
        return None

    def replaced(self, name: str, value: str) -> tuple[str, ...]:
        """All words, with `name` given once, at the end."""
        kept: list[str] = []
        skip = False
        for word, known_as in zip(self._words, self._names, strict=True):
            if known_as == name:
                skip = "=" not in word
            elif skip:
                skip = False
            else:
                kept.append(word)
        return (*kept, name, value)


def _name(word: str) -> str:
    if not word.startswith("-"):
        return ""
    head, dot, rest = word.partition("=")[0].partition(".")
    return head.replace("_", "-") + dot + rest


def _value(words: Sequence[str]) -> str | None:
    _, equals, value = words[0].partition("=")
    if equals:
        return value
    return words[1] if len(words) > 1 else None


@dataclass(frozen=True, slots=True)
class Launch:
    """One vLLM to start. `flags`: vLLM's own, passed on untouched, after ours.

    `events`, `replay`: ZeroMQ endpoints as vLLM takes them. It binds if the host is `*`; with any
    other host its events socket connects there (a router that binds). Port 0: a free one.
    `drain_s`: how long requests in flight may go on after SIGTERM; 0 leaves the flag out, which
    releases before 0.18 need.
    """

    model: str
    flags: tuple[str, ...] = ()
    executable: str = "vllm"
    events: str = "tcp://*:5557"
    replay: str = "tcp://*:5657"
    topic: str = "kv-events"
    drain_s: int = _DEFAULT_DRAIN_S
    on_cpu: bool = False


def command(launch: Launch) -> list[str]:
    """The words to execute. LaunchRefused if the user's flags contradict ours."""
    flags = Flags(launch.flags)
    _refuse_contradictions(flags)
    ours = [
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--kv-events-config",
        _kv_events_config(launch),
    ]
    if launch.drain_s and "--shutdown-timeout" not in flags:
        ours += ["--shutdown-timeout", str(launch.drain_s)]
    if launch.on_cpu:
        ours += _cpu_flags(flags)
    return [launch.executable, "serve", launch.model, *ours, *launch.flags]


def _refuse_contradictions(flags: Flags) -> None:
    for name, why in _REFUSED.items():
        if name in flags:
            raise LaunchRefused(f"{name}: {why}")
    if flags.value("--shutdown-timeout") == "0":
        raise LaunchRefused(
            "--shutdown-timeout 0: requests in flight would hang at SIGTERM; give seconds"
        )


def _kv_events_config(launch: Launch) -> str:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": launch.events,
        "replay_endpoint": launch.replay,
        "topic": launch.topic,
    }
    return json.dumps(config, separators=(",", ":"))


def _cpu_flags(flags: Flags) -> list[str]:
    # The CPU back end takes multiples of 32 and would choose 128, which hides shorter matches.
    ours = [] if "--block-size" in flags else ["--block-size", "32"]
    if "--enforce-eager" in flags or "--no-enforce-eager" in flags:
        return ours
    # Compiling needs a C++ compiler at run time, and minutes.
    return [*ours, "--enforce-eager"]


def ranks(launch: Launch) -> int:
    """How many replicas (data-parallel ranks) this vLLM will be."""
    flags = Flags(launch.flags)
    return int(flags.value("--data-parallel-size") or flags.value("-dp") or 1)


def http_address(launch: Launch) -> tuple[str, str, str]:
    """(scheme, host, port) at which this machine reaches the API."""
    flags = Flags(launch.flags)
    host = flags.value("--host") or ""
    if host in _EVERY_ADDRESS:
        host = "127.0.0.1"
    scheme = "https" if "--ssl-certfile" in flags else "http"
    return scheme, host, flags.value("--port") or DEFAULT_PORT


def is_bound_by_vllm(endpoint: str) -> bool:
    """Whether vLLM listens there, by vLLM's own rule, rather than connecting to it."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def with_ports_chosen(launch: Launch, rng: Random) -> Launch:
    """The same launch, each port 0 replaced by one that was free a moment ago."""
    events_port, replay_port, http_port = _free_ports(3, rng)
    flags = Flags(launch.flags)
    words = launch.flags
    if flags.value("--port") == ANY_PORT:
        words = flags.replaced("--port", str(http_port))
    return replace(
        launch,
        events=_with_port(launch.events, events_port),
        replay=_with_port(launch.replay, replay_port),
        flags=words,
    )


def _with_port(endpoint: str, port: int) -> str:
    host, _, given = endpoint.rpartition(":")
    return f"{host}:{port}" if given == ANY_PORT else endpoint


def _free_ports(count: int, rng: Random) -> list[int]:
    # vLLM binds half a minute later. The system's own choice is no use: it would offer the same
    # port to the next who asks, and to any outgoing connection. Those come from above this range.
    return list(islice(filter(_is_free, rng.sample(_PORTS, len(_PORTS))), count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
