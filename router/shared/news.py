"""What changes is told to the other routers at once, and heard of them.

Whoever is told late chooses like the others: who was idle gets all their prompts. So what a choice
makes a replica do is published as soon as it is made, or with what follows within `interval_s`.
Nothing depends on it: reports that are exchanged say all of it again, and where nobody may
publish, they follow each other sooner.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from router.index.load import Load
from router.replicas import ReplicaId
from router.shared.protocol import SharedStore, StoreFailed, StoreState
from router.shared.report import News, decode_news, encode_news

log = logging.getLogger(__name__)

WORK_SHARE: Final = 0.05
"""Of its time a router spends no more on telling news and reading them, if all tell as many."""
AT_ONCE_S: Final = 0.5
"""What it has not spent of so long it may spend at once."""
PUBLISH_S: Final = 200e-6
READ_S: Final = 120e-6
"""What redis-py takes to publish one piece of news, and to read one (`tests.bench.exchange
--work`), beside what is measured here."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
UNHEARD_S: Final = 1.0
"""Who has not heard its own news after so long hears nobody's."""
SHARE_OF_MEAN: Final = 0.05


@dataclass(slots=True)
class Newsroom:
    """One router's. `hear` gets others' news; `next_number` counts news and reports; `elsewhere`:
    how many want to know, which processes of this host don't.

    `state`: `ok` while nothing is missed that others tell. `delay_s`: from a change until its news
    are heard, in the mean of the last: our own come back the same way as others' come here.
    """

    router_id: str
    store: SharedStore
    own_load: Callable[[ReplicaId], Load]
    clock: Callable[[], float]
    hear: Callable[[News], None]
    next_number: Callable[[], int]
    elsewhere: Callable[[], int]
    interval_s: float
    group: str = ""
    state: StoreState = StoreState.OFF
    ready_at: float = 0.0
    delay_s: float = 0.0
    told: int = 0
    heard: int = 0
    _changed: dict[ReplicaId, None] = field(default_factory=dict)
    _is_call: bool = False
    """To whoever is there, though nobody is known."""
    _since: float = 0.0
    """When the first of these changed."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)
    _unheard: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Our own that did not come back yet: when the first change was, and when it was told."""
    _paid_until: float = -math.inf
    _tell_s: float = 0.0
    _hear_s: float = 0.0

    @property
    def is_live(self) -> bool:
        return self.state is StoreState.OK

    def changed(self, replica_id: ReplicaId) -> None:
        """What we make it do is not what it was."""
        if self.state is not StoreState.OK:
            return  # the next report says it
        self._begin()
        self._changed[replica_id] = None

    def say_all(self, replica_ids: Iterable[ReplicaId]) -> None:
        """What we make these do, to whoever is there: it can't be reported."""
        if self.state is StoreState.OK:
            self._begin()
            self._is_call = True
            self._changed.update(dict.fromkeys(replica_ids))

    def _begin(self) -> None:
        if not self._wake.is_set():
            self._since = self.clock()
            self._wake.set()

    def hurry(self) -> None:
        """The store can be reached again."""
        self._hurry.set()

    async def keep(self) -> None:
        """Tell and hear until cancelled. After a failure it is tried again, less and less often."""
        pause_s = FIRST_PAUSE_S
        while True:
            failed = await self._work()
            if self.is_live:
                pause_s = FIRST_PAUSE_S
            if failed.state is not self.state:
                log.warning("routers' news are not heard: %s", failed)
            self._stop(failed.state)
            try:
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            except TimeoutError:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def say_goodbye(self) -> None:
        """This router goes. StoreFailed."""
        if self.is_live:
            word = encode_news(self.router_id, self.next_number(), {}, self.group, is_last=True)
            await self.store.publish(word)

    async def _work(self) -> StoreFailed:
        """Until it fails."""
        tasks = [
            asyncio.create_task(work, name=f"shared-{name}")
            for name, work in (
                ("hear", self.store.listen(self._hear, self._ready)),
                ("tell", self._tell()),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(tasks)
        for task in done:
            if not task.cancelled() and isinstance(failed := task.exception(), StoreFailed):
                return failed
            task.result()  # anything else is a bug: whoever owns us hears of it
        return StoreFailed(StoreState.DOWN, "nothing more to hear")

    def _ready(self) -> None:
        self.state, self.ready_at = StoreState.OK, self.clock()

    def _stop(self, state: StoreState) -> None:
        self.state = state
        self._hurry.clear()
        self._changed.clear()
        self._unheard.clear()
        self._wake.clear()

    async def _tell(self) -> None:
        """Publish what changes, as it does. StoreFailed."""
        while True:
            await self._wake.wait()
            began = self.clock()
            if self._unheard and began - next(iter(self._unheard.values()))[1] > UNHEARD_S:
                raise StoreFailed(StoreState.SLOW, "own news are not heard")
            self._wake.clear()
            changed, self._changed = self._changed, {}
            is_call, self._is_call = self._is_call, False
            if is_call or self.elsewhere():
                loads = {replica_id: self.own_load(replica_id) for replica_id in changed}
                await self._publish(loads, began)
                await asyncio.sleep(self.pause_s())

    async def _publish(self, loads: Mapping[ReplicaId, Load], began: float) -> None:
        number, since = self.next_number(), self._since
        news = encode_news(self.router_id, number, loads, self.group)
        now = self.clock()
        self._tell_s, self.told = now - began, self.told + 1
        self._unheard[number] = since, now
        await self.store.publish(news)

    def pause_s(self) -> float:
        """After a piece of news: what they cost all who hear them is bounded."""
        now = self.clock()
        hear_s = self.elsewhere() * (self._hear_s + READ_S)
        due_s = (self._tell_s + PUBLISH_S + hear_s) / WORK_SHARE
        self._paid_until = max(self._paid_until, now - AT_ONCE_S) + due_s
        return max(self.interval_s, self._paid_until - now)

    def _hear(self, data: bytes) -> None:
        began = self.clock()
        news = decode_news(data)
        if news is None:
            return  # another router's mistake must not be ours
        if news.router_id == self.router_id:
            self._own_came_back(news.number, began)
            return
        self.heard += 1
        self.hear(news)
        self._hear_s = self.clock() - began

    def _own_came_back(self, number: int, now: float) -> None:
        """Ours are heard in the order in which they were told."""
        if number not in self._unheard:
            return
        took_s = now - self._unheard[number][0]
        self.delay_s += SHARE_OF_MEAN * (took_s - self.delay_s) if self.delay_s else took_s
        for one in [one for one in self._unheard if one <= number]:
            del self._unheard[one]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
