"""The admin port's thread: what it shows is looked at by the data path's thread."""

import asyncio
import threading
import urllib.request

import pytest

from router.gateway.admin import Metrics
from router.gateway.app import Gateway
from router.gateway.aside import Aside
from router.gateway.cors import Cors
from router.gateway.limits import EdgeLimits
from router.gateway.server import EdgeServer
from router.metrics import Metrics as Numbers


class Watched(Numbers):
    """Notes which thread looks, and which one writes it down."""

    def __init__(self):
        super().__init__(tuple)
        self.lookers, self.writers = [], []

    def look(self):
        super().look()
        self.lookers.append(threading.get_ident())

    def exposition(self):
        self.writers.append(threading.get_ident())
        return super().exposition()


@pytest.fixture
async def watched():
    return Watched()


@pytest.fixture
async def url(watched):
    loop = asyncio.get_running_loop()
    routes = {"/metrics": {"GET": Metrics(watched, loop)}}

    def build():
        handle = Gateway(lambda path: routes.get(path, {}), Cors(())).handle
        return EdgeServer(handle, EdgeLimits())

    aside = Aside(build, "127.0.0.1", 0)
    await asyncio.to_thread(aside.start)
    yield f"http://127.0.0.1:{aside.port}/metrics"
    await asyncio.to_thread(aside.stop)


def ask(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.status, answer.read()


async def test_the_data_paths_thread_looks_and_the_ports_own_writes(watched, url):
    status, text = await asyncio.to_thread(ask, url)
    assert status == 200
    assert b"warmgate_replica_healthy" in text
    assert watched.lookers == [threading.get_ident()]
    assert threading.get_ident() not in watched.writers


async def test_a_data_path_that_is_stuck_is_shown_as_it_was(watched, url):
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(url)))
    asking.start()
    asking.join(10)  # the loop does nothing meanwhile
    assert answers[0][0] == 200
    assert watched.lookers == []
