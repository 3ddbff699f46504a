"""Which replica keeps a stored response: only it can answer what goes on from that response."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from router.index.siblings import NoNotes, SiblingNotes
from router.replicas import ReplicaId
from router.shared.protocol import StoreFailed
from router.shared.redis_store import RedisStore, state_of_text

BATCH: Final = 256
"""Notes and questions in one round trip, at most so many of each."""
RETRY_S: Final = 0.5
"""A store that failed is let alone for so long; meanwhile nobody waits for it."""

# KEYS: those to set, then those to get. A value that can't be set must not hide those that can be
# got, so its error is only told.
_SCRIPT: Final = """
local count, refused, found = tonumber(ARGV[1]), '', {}
for i = 1, count do
  local answer = redis.pcall('SET', KEYS[i], ARGV[i + 2], 'PX', ARGV[2])
  if type(answer) == 'table' and answer.err then
    refused = answer.err
    break
  end
end
for i = count + 1, #KEYS do
  found[i - count] = redis.call('GET', KEYS[i])
end
return {refused, found}
"""


class Owners(Protocol):
    """Neither method fails: what isn't known costs the client an answer of the wrong replica.

    `counts`: of `find`, by where it was known.
    """

    @property
    def counts(self) -> Counter[str]: ...

    def note(self, response_id: str, replica_id: ReplicaId) -> None:
        """The replica has begun to answer with this response."""

    async def find(self, response_id: str) -> ReplicaId | None:
        """Who keeps it. Waits for a store once, and never longer than its deadline."""


@dataclass(slots=True)
class MemoryOwners:
    """What this router itself has seen of late, and the other processes of its host."""

    clock: Callable[[], float]
    ttl_s: float
    max_entries: int
    host: SiblingNotes = field(default_factory=NoNotes)
    counts: Counter[str] = field(default_factory=Counter)
    _known: OrderedDict[str, tuple[ReplicaId, float]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._known)

    def note(self, response_id: str, replica_id: ReplicaId) -> None:
        until = self.clock() + self.ttl_s
        self._known.pop(response_id, None)
        self._known[response_id] = replica_id, until
        self.host.put(response_id, replica_id, until)
        while len(self._known) > self.max_entries:
            self._known.popitem(last=False)

    async def find(self, response_id: str) -> ReplicaId | None:
        found = self.recall(response_id)
        self.counts["unknown" if found is None else "here"] += 1
        return found

    def recall(self, response_id: str) -> ReplicaId | None:
        """Without counting."""
        known = self._known.get(response_id) or self.host.get(response_id)
        if known is None or known[1] <= self.clock():
            return None
        return known[0]


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """The value of a key. Later versions append."""

    replica_id: str


_decoder = msgspec.msgpack.Decoder(Owner)


@dataclass(slots=True, eq=False)
class _Question:
    response_id: str
    answer: asyncio.Future[ReplicaId | None]


@dataclass(slots=True)
class RedisOwners:
    """The same for all routers of a Redis. `work` must run: it carries all notes and questions of
    an instant in one round trip. While Redis fails, notes wait for it, the oldest go first.
    """

    own: MemoryOwners
    store: RedisStore
    deadline_s: float
    failures: Counter[str] = field(default_factory=Counter)
    _notes: OrderedDict[str, ReplicaId] = field(default_factory=OrderedDict)
    _questions: list[_Question] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _let_alone_until: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        return self.own.counts

    def note(self, response_id: str, replica_id: ReplicaId) -> None:
        self.own.note(response_id, replica_id)
        self._notes[response_id] = replica_id
        while len(self._notes) > self.own.max_entries:
            self._notes.popitem(last=False)
        self._wake.set()

    async def find(self, response_id: str) -> ReplicaId | None:
        found, where = self.own.recall(response_id), "here"
        if found is None:
            found, where = await self._ask(response_id)
        self.own.counts[where] += 1
        return found

    async def _ask(self, response_id: str) -> tuple[ReplicaId | None, str]:
        if self.own.clock() < self._let_alone_until:
            return None, "failed"
        question = _Question(response_id, asyncio.get_running_loop().create_future())
        self._questions.append(question)
        self._wake.set()
        try:
            async with asyncio.timeout(self.deadline_s):
                found = await question.answer
        except (TimeoutError, StoreFailed):
            return None, "failed"
        return found, "unknown" if found is None else "shared"

    async def work(self) -> None:
        """Carry notes and questions until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            notes = dict(list(self._notes.items())[:BATCH])
            # whoever has waited too long is gone
            waiting = [one for one in self._questions if not one.answer.done()]
            questions, self._questions = waiting[:BATCH], waiting[BATCH:]
            try:
                await self._exchange(notes, questions)
            except StoreFailed as exc:
                self.failures[exc.state] += 1
                self._let_alone_until = self.own.clock() + RETRY_S
                for one in questions:
                    if not one.answer.done():
                        one.answer.set_exception(exc)
                await asyncio.sleep(RETRY_S)
            if self._notes or self._questions:
                self._wake.set()

    async def _exchange(self, notes: dict[str, ReplicaId], questions: Sequence[_Question]) -> None:
        if not notes and not questions:
            return
        ids = [*notes, *(one.response_id for one in questions)]
        keys = [self.store.key("response", name) for name in ids]
        values = [msgspec.msgpack.encode(Owner(replica_id)) for replica_id in notes.values()]
        ttl_ms = round(self.own.ttl_s * 1e3)
        answer = await self.store.run(_SCRIPT, keys, len(notes), ttl_ms, *values)
        refused, found = answer
        for one, data in zip(questions, found, strict=True):
            owner = _read(data)
            if owner is not None:
                self.own.note(one.response_id, owner)
            if not one.answer.done():
                one.answer.set_result(owner)
        if refused:
            text = refused.decode("utf-8", "replace")
            raise StoreFailed(state_of_text(text), text)
        for name, replica_id in notes.items():
            if self._notes.get(name) == replica_id:
                del self._notes[name]


def _read(data: Any) -> ReplicaId | None:
    """None for what no version of ours has written."""
    if not isinstance(data, bytes):
        return None
    try:
        return _decoder.decode(data).replica_id
    except msgspec.DecodeError:
        return None
