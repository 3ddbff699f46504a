"""The sockets of `serve --processes N`, as one of the processes accepts from them.

The supervisor holds a listening socket per process, and every process inherits all of them. Each
accepts from its own; from those of one that drains, has died or has not begun yet accepts the
next. So no connection waits in a queue for which nobody cares, and none is reset with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from router.shared.doors import Doors

LOOK_EVERY_S: Final = 0.05
PATIENCE_S: Final = 2.0
"""How long a new process that can't serve yet lets connections wait, if no other one takes them."""


@dataclass(slots=True)
class Entrance:
    """`sockets`: descriptors by slot; `slot`: which of them is ours."""

    runner: web.ServerRunner
    sockets: Sequence[int]
    slot: int
    doors: Doors
    is_ready: Callable[[], bool]
    """Can this process serve as well as the others?"""
    backlog: int
    tls: ssl.SSLContext | None = None
    _sites: dict[int, web.SockSite] = field(default_factory=dict)

    @property
    def port(self) -> int:
        with socket.socket(fileno=os.dup(self.sockets[self.slot])) as ours:
            port: int = ours.getsockname()[1]
            return port

    async def keep(self) -> None:
        """Accept from our own when we can serve, and stand in for the others.

        While nobody can, connections wait for a while; then they get our refusals.
        """
        clock = asyncio.get_running_loop().time
        patient_until = clock() + PATIENCE_S
        while True:
            if not self.doors.is_open(self.slot):
                is_nobody_open = self.doors.keeper_of(self.slot) is None
                if self.is_ready() or (is_nobody_open and clock() > patient_until):
                    self.doors.open(self.slot)
            for slot in range(len(self.sockets)):
                is_ours = self.doors.keeper_of(slot) == self.slot
                if is_ours and slot not in self._sites:
                    await self._accept(slot)
                elif not is_ours and slot in self._sites:
                    await self._refuse(slot)
            await asyncio.sleep(LOOK_EVERY_S)

    async def shut(self) -> None:
        """Leave all of it to the others."""
        self.doors.shut(self.slot)
        for slot in list(self._sites):
            await self._refuse(slot)

    async def _accept(self, slot: int) -> None:
        # a descriptor of our own: closing it leaves the socket and its queue to the others
        sock = socket.socket(fileno=os.dup(self.sockets[slot]))
        site = web.SockSite(self.runner, sock, ssl_context=self.tls, backlog=self.backlog)
        await site.start()
        self._sites[slot] = site

    async def _refuse(self, slot: int) -> None:
        await self._sites.pop(slot).stop()
