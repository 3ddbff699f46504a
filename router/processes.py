"""`warmgate serve --processes N`: N routers on one port, started over when one of them ends."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from router.config import ConfigError
from router.fleet import Child, Fleet
from router.folder import home, run_folder
from router.gateway.speaker import speaking
from router.knowledge import is_central
from router.serve import BACKLOG
from router.settings import ListenSettings, RouterConfig
from router.shared.board import LoadBoard
from router.shared.cells import SLOTS
from router.shared.doors import Doors, doors_of

GRACE_S: Final = 10.0
"""Beyond settling and draining, before a process that doesn't end is killed."""


def run(config: RouterConfig, arguments: Sequence[str], processes: int) -> int:
    """Serve until SIGTERM or SIGINT. `arguments`: of `warmgate serve`, for each of them."""
    is_shared = is_central(config.index, processes)
    has_index = is_shared and config.index.address is None
    _check(config, processes, has_index=has_index)
    listen = config.listen
    with run_folder(home()) as folder, _listening(listen, processes) as sockets:
        common = [*arguments, "--processes=1", f"--set=shared.board={folder / 'load'}"]
        common.append(f"--set=index.mode={'shared' if is_shared else 'local'}")
        asking = _asking(folder) if has_index else []
        routers = _routers(config, [*common, *asking], sockets)
        index = _index(config, common, folder) if has_index else None
        board = LoadBoard(folder / "load", processes % SLOTS, processes, time.monotonic)
        doors = Doors(doors_of(str(folder / "load")), processes)

        def cleared(slot: int) -> None:
            board.clear(slot)
            doors.shut(slot)

        patience_s = listen.settle_s + listen.drain_s + GRACE_S
        try:
            # the supervisor's slot is beyond theirs: it makes no load, it only clears others'
            return asyncio.run(_serve(Fleet(routers, index, patience_s, cleared), listen))
        finally:
            board.close()
            doors.close()


async def _serve(fleet: Fleet, listen: ListenSettings) -> int:
    if listen.admin_port is None:
        return await fleet.serve()
    async with speaking(
        lambda: dict(sorted(fleet.voices.items())),
        lambda: fleet.index_voice,
        listen.host,
        listen.admin_port,
    ) as port:
        name = f"[{listen.host}]" if ":" in listen.host else listen.host
        fleet.admin_url = f"http://{name}:{port}"
        return await fleet.serve()


def _check(config: RouterConfig, processes: int, *, has_index: bool) -> None:
    if not 1 <= processes <= SLOTS:
        raise ConfigError(f"--processes is {processes}; it can be 1 to {SLOTS}")
    if config.listen.unix_path is not None:
        raise ConfigError("listen.unix_path can be bound by one process only, not with --processes")
    if config.events.bind is not None and not has_index:
        raise ConfigError(
            "events.bind can be bound by one process only: with --processes it needs "
            "index.mode=shared, without index.address"
        )
    if config.tenants.keys_file is not None and config.shared.url is None:
        raise ConfigError("tenants.keys_file with --processes needs shared.url: budgets are shared")


def _routers(config: RouterConfig, common: Sequence[str], sockets: Sequence[int]) -> list[Child]:
    shared = [*common, f"--set=listen.sockets=[{', '.join(map(str, sockets))}]"]
    shared.append(f"--set=shared.processes={len(sockets)}")
    if config.listen.admin_port is not None:
        shared.append("--set=listen.admin_port=0")
    return [
        Child(f"process {slot}", ["serve", *shared, f"--set=shared.slot={slot}"], sockets)
        for slot in range(len(sockets))
    ]


def _asking(folder: Path) -> list[str]:
    # whoever listens for engines is the index alone
    return [f"--set=index.address={_address(folder)}", "--set=events.bind=null"]


def _index(config: RouterConfig, common: Sequence[str], folder: Path) -> Child:
    arguments = ["index", *common, f"--set=index.address={_address(folder)}"]
    arguments += ["--host=127.0.0.1", "--port=0"]
    if config.index.snapshot_file is None:
        # in memory: it is for the next index process, not for the next supervisor
        arguments.append(f"--set=index.snapshot_file={folder / 'index.snapshot'}")
    return Child("index", arguments)


def _address(folder: Path) -> str:
    return f"unix:{folder / 'index'}"


@contextmanager
def _listening(listen: ListenSettings, count: int) -> Iterator[list[int]]:
    """A listening socket for each process, all on one port: the kernel spreads connections.

    They are ours, so that what waits in a socket's queue outlives the process that was to accept
    it: the others, and whoever takes its place, accept it then. ConfigError.
    """
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        port = listen.port
        for _ in range(count):
            one = stack.enter_context(_listen(listen.host, port))
            port = one.getsockname()[1]
            sockets.append(one)
        yield [one.fileno() for one in sockets]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        one = socket.socket(family, kind)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(where)
            one.listen(BACKLOG)
        except OSError:
            one.close()
            raise
    except OSError as exc:
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    return one
