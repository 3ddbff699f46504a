"""Nothing but a Forwarder behind aiohttp's server: the data path's own cost."""

import argparse
import asyncio

import uvloop
from aiohttp import web

from router.errors import RouterError
from router.proxy.client import SentResponse
from router.proxy.forwarder import Forwarder
from router.proxy.headers import Ours, ours_of
from router.proxy.reply import Limits
from router.replicas.replica import Replica


class NullListener:
    def trying(self, replica: Replica) -> None:
        """Not noted."""

    def sent(self, replica: Replica) -> None:
        """Not noted."""

    def failed(self, replica: Replica, error: RouterError) -> None:
        """Not noted."""

    def headers(self, replica: Replica) -> Ours:
        headers = [
            ("x-warmgate-replica", replica.id),
            ("x-warmgate-matched-blocks", "12"),
            ("x-warmgate-prompt-blocks", "31"),
            ("x-warmgate-reason", "match"),
            ("x-request-id", "5f3759df5f3759df"),
        ]
        return ours_of(headers)

    def first_byte(self, replica: Replica, status: int, start: bytes) -> None:
        """Not noted."""

    def first_byte_sent(self, replica: Replica, status: int) -> None:
        """Not noted."""


async def serve(port: int, url: str) -> None:
    forwarder = Forwarder(Limits())
    listener = NullListener()
    replicas = [Replica("r1", url)]

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        reply = await forwarder.forward(request, body, replicas, listener)
        return SentResponse(
            reply.status, keeps_alive=reply.keeps_alive, bytes_sent=reply.bytes_sent
        )

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("url")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.url))
