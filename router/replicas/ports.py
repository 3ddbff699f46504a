"""From an address to the replicas behind it: the ports where engines serve and publish."""

from collections.abc import Iterator
from dataclasses import dataclass

from router.replicas.replica import Replica


@dataclass(frozen=True, slots=True)
class Ports:
    """Where engines listen. `events` None: the router asks the engine where it publishes.

    With `ranks` > 1 each data-parallel rank is a replica of its own behind the one HTTP port;
    vLLM's ranks publish on consecutive ports.
    """

    http: int = 8000
    events: int | None = None
    replay: int | None = None
    topic: str = ""
    ranks: int = 1
    scheme: str = "http"

    def replicas(self, name: str, address: str) -> Iterator[Replica]:
        """One per rank. `name` is its id; "": the address and the port."""
        host = f"[{address}]" if ":" in address else address
        for rank in range(self.ranks):
            yield Replica(
                id=(name or f"{host}:{self.http}") + (f"-dp{rank}" if self.ranks > 1 else ""),
                url=f"{self.scheme}://{host}:{self.http}",
                events_url=_endpoint(host, self.events, rank),
                replay_url=_endpoint(host, self.replay, rank),
                topic=self.topic,
                rank=rank if self.ranks > 1 else None,
            )


def _endpoint(host: str, port: int | None, rank: int) -> str | None:
    return None if port is None else f"tcp://{host}:{port + rank}"
