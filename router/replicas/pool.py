"""Who can serve: the known replicas, and what the router has learnt of each."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from router.replicas.breaker import DEFAULT_TIMES, Breaker, BreakerTimes
from router.replicas.replica import Replica, ReplicaId
from router.replicas.report import EngineReport

NO_REPORT: Final = EngineReport()
Rows: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True, eq=False)
class Member:
    """A replica in the pool, with what probes and traffic have shown of it.

    `models`: what it serves, rows as of GET /v1/models by name. `since`: when health last changed.
    `full_until`: it asked to be spared until then. `report`: what the engine said of itself last.
    """

    replica: Replica
    since: float
    breaker: Breaker
    full_until: float = 0.0
    is_healthy: bool = False
    models: Rows = field(default_factory=dict)
    last_error: str = "not probed yet"
    report: EngineReport = NO_REPORT
    base_model: str = field(init=False, default="")
    """The first model that is no adapter: what its speed depends on. "" before a probe."""
    _told: Rows = field(default_factory=dict)
    _adapters: frozenset[str] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        self._name_models()

    @property
    def id(self) -> ReplicaId:
        return self.replica.id

    @property
    def cache_tokens(self) -> int:
        """How many its cache holds, by the settings or by itself; 0: nobody says."""
        return self.replica.cache_tokens or self.report.cache_tokens or 0

    def serves(self, model: str) -> bool:
        return model in self.models

    def tell(self, models: Rows) -> None:
        """Its GET /v1/models has said so."""
        self._told = models
        self._name_models()

    def declare(self, replica: Replica) -> None:
        """The same engine, of which its deployment says something else now."""
        self.replica = replica
        self._name_models()

    def _name_models(self) -> None:
        """The engine's word on its models goes before a label's; adapters that an engine loads
        when they are asked for are in no list, so labels add to those."""
        declared = self.replica.model
        models = self._told or ({declared: {"id": declared, "object": "model"}} if declared else {})
        base = next((name for name, row in models.items() if row.get("parent") not in models), "")
        extra = {
            name: {"id": name, "object": "model", "parent": base}
            for name in self.replica.adapters
            if name not in models
        }
        self.models = models = {**models, **extra} if extra else models
        self._adapters = frozenset(n for n, row in models.items() if row.get("parent") in models)
        self.base_model = next((name for name in models if name not in self._adapters), "")

    def is_adapter(self, model: str) -> bool:
        """Whether the name is a LoRA adapter's: vLLM gives those their base model as parent."""
        return model in self._adapters

    def __repr__(self) -> str:
        health = "healthy" if self.is_healthy else f"unhealthy ({self.last_error})"
        return f"<Member {self.id} {health}>"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reconciliation changed."""

    joined: tuple[Member, ...]
    left: tuple[Member, ...]


@dataclass(slots=True)
class Pool:
    """All known replicas. Discovery gives it full sets; probes and traffic give it health."""

    clock: Callable[[], float]
    on_health: list[Callable[[Member], None]] = field(default_factory=list)
    breaker_times: BreakerTimes = DEFAULT_TIMES
    _members: dict[ReplicaId, Member] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, replica_id: ReplicaId) -> Member | None:
        return self._members.get(replica_id)

    def reconcile(self, replicas: Collection[Replica]) -> Changes:
        """Make the pool hold exactly these. One whose address changed leaves and joins anew."""
        wanted = {replica.id: replica for replica in replicas}
        # few of many change at a time, and those that don't are mostly the same objects
        changed = [
            (member, replica)
            for member in self
            if (replica := wanted.get(member.id)) is not member.replica
            and replica != member.replica
        ]
        left = []
        for member, replica in changed:
            if replica is not None and member.replica.is_same_engine(replica):
                member.declare(replica)
            else:
                left.append(member)
                del self._members[member.id]
        new = (replica for replica in wanted.values() if replica.id not in self._members)
        joined = tuple(self._member(replica) for replica in new)
        self._members.update((member.id, member) for member in joined)
        return Changes(joined, tuple(left))

    def serves(self, model: str) -> bool:
        """Whether any is `available`. Looks no further than the first."""
        for member in self._members.values():
            if member.is_healthy and model in member.models and member.replica.answers:
                return True
        return False

    def available(self, model: str) -> list[Member]:
        """Healthy replicas that serve the model to clients, in the order in which they joined.

        Those that are full or whose breaker is open are left out, unless all are: a request that
        fails is no worse than one that is refused.
        """
        healthy, wanted, now = [], [], self.clock()
        for member in self._members.values():
            if member.is_healthy and model in member.models and member.replica.answers:
                healthy.append(member)
                if member.full_until <= now and member.breaker.allows:
                    wanted.append(member)
        return wanted or healthy

    def knows(self, model: str) -> bool:
        """Whether any replica, healthy or not, is known to serve the model."""
        return any(member.serves(model) for member in self)

    def mark_up(self, replica_id: ReplicaId, models: Rows) -> None:
        """A probe succeeded. A replica that has left meanwhile is no error."""
        if (member := self.get(replica_id)) is not None:
            member.tell(models)
            self._set_health(member, healthy=True, error="")

    def mark_down(self, replica_id: ReplicaId, error: str) -> None:
        """A probe or a request showed that it can't be reached. It is out of the choice now."""
        if (member := self.get(replica_id)) is not None:
            self._set_health(member, healthy=False, error=error)

    def mark_full(self, replica_id: ReplicaId, for_s: float) -> None:
        """It refused a request because it has too many: others come first for so long."""
        if (member := self.get(replica_id)) is not None:
            member.full_until = self.clock() + for_s

    def _member(self, replica: Replica) -> Member:
        return Member(replica, self.clock(), Breaker(self.clock, self.breaker_times))

    def _set_health(self, member: Member, *, healthy: bool, error: str) -> None:
        changed = member.is_healthy is not healthy
        member.is_healthy, member.last_error = healthy, error
        if changed:
            member.since = self.clock()
            member.breaker.reset()
            for listener in self.on_health:
                listener(member)
