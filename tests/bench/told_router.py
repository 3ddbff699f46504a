"""`warmgate`, which writes down when its load changes, when it tells of it, and when it hears.

For `tests.bench.exchange`: lines of JSON into the folder that `WARMGATE_TOLD` names.
"""

import json
import os
import sys
from pathlib import Path

from router import cli
from router.index.load import Load
from router.index.reservations import Reservations
from router.shared.hearing import Hearing
from router.shared.news import Newsroom
from router.shared.peers import Peers
from router.shared.report import News

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

    changed, tick, publish = Reservations._tell, Peers.tick, Newsroom._publish
    hear, hear_news = Hearing.reports, Hearing.news
    latest: dict[str, int] = {}

    def noted(self: Reservations, replica_id: str, *, at_once: bool = False) -> None:
        tell("changed", self.clock())
        changed(self, replica_id, at_once=at_once)

    async def told(self: Peers) -> None:
        # the report is made in the next step, before anything is awaited
        tell("told", self.router_id, self._number + 1, self.clock())
        await tick(self)

    async def published(self: Newsroom, loads: dict[str, Load], began: float) -> None:
        next_number = self.next_number

        def counted() -> int:
            number = next_number()
            tell("told", self.router_id, number, began)
            return number

        self.next_number = counted
        try:
            await publish(self, loads, began)
        finally:
            self.next_number = next_number

    def note(router_id: str, number: int, at: float) -> None:
        if latest.get(router_id, 0) < number:
            latest[router_id] = number
            tell("heard", router_id, number, at)

    def heard(self: Hearing, others: dict[str, bytes]) -> None:
        hear(self, others)
        for router_id, one in self._heard.items():
            note(router_id, one.report.number, self.clock())

    def heard_news(self: Hearing, news: News) -> None:
        hear_news(self, news)
        note(news.router_id, news.number, self.clock())

    Reservations._tell, Peers.tick, Newsroom._publish = noted, told, published  # type: ignore[method-assign,assignment]
    Hearing.reports, Hearing.news = heard, heard_news  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    watch(Path(os.environ["WARMGATE_TOLD"]))
    sys.exit(cli.main())
