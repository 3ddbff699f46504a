"""Services at their cluster addresses, by a proxy in this process; their names in a hosts file."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sandbox import BRIDGE, ip

Thing = dict[str, Any]
Address = tuple[str, int]


@dataclass
class ServiceProxy:
    """`hosts`: what pods see as /etc/hosts; rewritten in place, because it is mounted."""

    hosts: Path
    targets: dict[Address, list[Address]] = field(default_factory=dict)
    _servers: dict[Address, asyncio.Server] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.hosts.parent.mkdir(parents=True, exist_ok=True)
        self.hosts.write_text("127.0.0.1 localhost\n")

    async def update(self, services: list[Thing], endpoints: list[Thing]) -> None:
        """Serve what there is now."""
        subsets = {key_of(thing): thing.get("subsets") or () for thing in endpoints}
        names = ["127.0.0.1 localhost"]
        for service in services:
            ready = subsets.get(key_of(service), ())
            address = service["spec"].get("clusterIP")
            pods = sorted({row["ip"] for part in ready for row in part.get("addresses") or ()})
            namespace, name = key_of(service)
            known_as = f"{name} {name}.{namespace} {name}.{namespace}.svc"
            names += [f"{at} {known_as}" for at in (pods if address == "None" else [address])]
            if address != "None":
                for port in service["spec"]["ports"]:
                    await self._serve((address, port["port"]), backends(ready, port))
        text = "\n".join(names) + "\n"
        if self.hosts.read_text() != text:
            self.hosts.write_text(text)

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, at: Address, targets: list[Address]) -> None:
        self.targets[at] = targets
        if at in self._servers:
            return
        if not any(address == at[0] for address, _ in self._servers):
            ip("addr", "add", f"{at[0]}/32", "dev", BRIDGE)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay(at, reader, writer)

        self._servers[at] = await asyncio.start_server(accept, *at)

    async def _relay(
        self, at: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            host, port = random.choice(self.targets[at])
            far_reader, far_writer = await asyncio.open_connection(host, port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(copy(reader, far_writer))
                both.create_task(copy(far_reader, writer))
        except* (OSError, IndexError, asyncio.CancelledError):
            pass
        finally:
            for opened in writers:
                opened.close()
            self._tasks.discard(task)


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until the source ends; then the sink is told so."""
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()


def backends(subsets: Any, port: Thing) -> list[Address]:
    """Ready endpoints of one of a Service's ports."""
    return [
        (row["ip"], told["port"])
        for part in subsets
        for row in part.get("addresses") or ()
        for told in part["ports"]
        if told.get("name") == port.get("name")
    ]


def key_of(thing: Thing) -> tuple[str, str]:
    return thing["metadata"]["namespace"], thing["metadata"]["name"]
