"""`warmgate`, which writes down when its load changes, when it tells of it, and when it hears.

For `tests.bench.exchange`: lines of JSON into the folder that `WARMGATE_TOLD` names.
"""

import json
import os
import sys
from pathlib import Path

from router import cli
from router.index.reservations import Reservations
from router.shared.peers import Peers

FLUSHED_EVERY = 50


def watch(folder: Path) -> None:
    """Let this process' parts tell; times are CLOCK_MONOTONIC, one for all processes."""
    lines: list[str] = []
    with (folder / f"{os.getpid()}.jsonl").open("w") as file:
        descriptor = os.dup(file.fileno())

    def tell(*what: object) -> None:
        lines.append(json.dumps(what))
        if len(lines) >= FLUSHED_EVERY:
            os.write(descriptor, ("\n".join(lines) + "\n").encode())
            lines.clear()

    changed, tick, hear = Reservations._tell, Peers.tick, Peers._hear

    def noted(self: Reservations, replica_id: str) -> None:
        tell("changed", self.clock())
        changed(self, replica_id)

    async def told(self: Peers) -> None:
        # the report is made in the next step, before anything is awaited
        tell("told", self.router_id, self._number + 1, self.clock())
        await tick(self)

    def heard(self: Peers, others: dict[str, bytes]) -> None:
        before = {router_id: one.report.number for router_id, one in self._heard.items()}
        hear(self, others)
        for router_id, one in self._heard.items():
            if before.get(router_id) != one.report.number:
                tell("heard", router_id, one.report.number, self.clock())

    Reservations._tell, Peers.tick, Peers._hear = noted, told, heard  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    watch(Path(os.environ["WARMGATE_TOLD"]))
    sys.exit(cli.main())
