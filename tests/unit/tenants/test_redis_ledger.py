"""What becomes of a request that was let in just when nobody waited for it any more."""

import asyncio
from collections.abc import Callable

import pytest

from router.tenants import Ask, RedisLedger, Tenant
from router.tenants.script import HEAD

TENANT = Tenant(id="a", concurrent_requests=6)
WINDOW, SINCE = 10, 1000


class Scripts:
    """A store that says yes to all, and does something just before."""

    def __init__(self):
        self.before: Callable[[], object] = lambda: None
        self.in_flight = []

    def key(self, *parts):
        return ":".join(parts)

    async def run(self, script, keys, *values):
        rows = keys[1:]
        if rows:
            self.in_flight.append(values[HEAD + 5])
            self.before()
        return [SINCE, *([0, 1, 1, 1, WINDOW, 30_000] for _ in rows)]


async def test_a_client_that_leaves_in_the_instant_of_the_answer_leaves_nothing_in_flight():
    scripts = Scripts()
    ledger = RedisLedger("one", scripts, 5.0, lambda: 1, lambda: WINDOW * 60 + 30.0)
    working = asyncio.create_task(ledger.work())
    asking = asyncio.create_task(ledger.take(Ask(TENANT, 1)))
    loop = asyncio.get_running_loop()
    # it is cancelled after the answer was given and before it has read it
    scripts.before = lambda: loop.call_soon(asking.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asking
    scripts.before = lambda: None
    taken = await ledger.take(Ask(TENANT, 1))
    assert taken.refusal is None
    # what Redis is told of the first with the second
    assert scripts.in_flight[-1] == 0
    working.cancel()
    await asyncio.wait([working])
