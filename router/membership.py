"""Replicas that join get their tasks, and those that leave lose them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from router.replicas import Member, Pool
from router.replicas.discovery import Discovery
from router.supervise import Supervisor


@dataclass(slots=True)
class Membership:
    """Keeps a pool as discovery says. `tasks`: what runs for each replica, by kind.

    `on_join`, `on_leave`: to be told; who left has no tasks any more.
    """

    pool: Pool
    discovery: Discovery
    supervisor: Supervisor
    tasks: Mapping[str, Callable[[Member], Awaitable[None]]]
    on_join: Sequence[Callable[[Member], None]] = ()
    on_leave: Sequence[Callable[[str], None]] = ()

    async def follow(self) -> None:
        """For as long as discovery watches."""
        async for replicas in self.discovery.watch():
            changes = self.pool.reconcile(replicas)
            for member in changes.left:
                await self._leave(member)
            for member in changes.joined:
                self._join(member)

    def _join(self, member: Member) -> None:
        for tell in self.on_join:
            tell(member)
        for kind, work in self.tasks.items():
            self.supervisor.run(f"{kind} {member.id}", partial(work, member))

    async def _leave(self, member: Member) -> None:
        for kind in self.tasks:
            await self.supervisor.stop(f"{kind} {member.id}")
        for tell in self.on_leave:
            tell(member.id)
