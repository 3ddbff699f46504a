"""Which handler answers what, and the one border where errors become replies."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import getrandbits
from typing import Final

from aiohttp import web

from router.errors import MethodNotAllowed, RouteNotFound, RouterError
from router.gateway import admin, replies
from router.gateway.cors import Cors
from router.gateway.explain import Explain
from router.gateway.generate import Generate
from router.gateway.limits import EdgeLimits
from router.gateway.quick import QuickRequest
from router.gateway.server import EdgeServer
from router.gateway.shadow import DebugShadow
from router.gateway.stored import StoredResponses, methods_of
from router.proxy.reply import Reply
from router.runtime import Runtime

log = logging.getLogger(__name__)

GENERATION_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/tokenize",
    "/detokenize",
)
"""Bodies with a `model`. Those with a prompt that we can tokenize go where its prefix is."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Quick = Callable[[QuickRequest, str, Mapping[str, str]], Awaitable[Reply]]
Routes = Mapping[str, Mapping[str, Handler]]
_SANE_ID = re.compile(r"[!-~]{1,128}")


def build_server(
    runtime: Runtime,
    limits: EdgeLimits,
    *,
    cors_origins: Sequence[str] = (),
    admin_elsewhere: bool = False,
) -> EdgeServer:
    """The clients' server. `admin_elsewhere`: metrics and debug have a listener of their own."""
    generate = Generate(runtime, limits)
    routes: dict[str, Mapping[str, Handler]] = {
        path: {"POST": generate} for path in GENERATION_PATHS
    }
    routes["/v1/models"] = {"GET": admin.Models(runtime)}
    routes |= probe_routes(runtime)
    if not admin_elsewhere:
        routes |= admin_routes(runtime, limits)
    stored = StoredResponses(runtime, limits)

    def find(path: str) -> Mapping[str, Handler]:
        return routes.get(path) or dict.fromkeys(methods_of(path), stored)

    gateway = Gateway(find, Cors(cors_origins), generate.quick)
    quick_paths = frozenset(path.encode() for path in GENERATION_PATHS)
    return EdgeServer(gateway.handle, limits, gateway.answer, quick_paths)


def build_admin_server(runtime: Runtime) -> EdgeServer:
    """Probes, metrics and debug alone."""
    limits = EdgeLimits()
    routes = {**probe_routes(runtime), **admin_routes(runtime, limits)}
    return EdgeServer(Gateway(lambda path: routes.get(path, {}), Cors(())).handle, limits)


def probe_routes(runtime: Runtime) -> Routes:
    return {"/healthz": {"GET": admin.healthz}, "/readyz": {"GET": admin.Readyz(runtime)}}


def admin_routes(runtime: Runtime, limits: EdgeLimits) -> Routes:
    return {
        "/metrics": {"GET": admin.Metrics(runtime.metrics, runtime.crashed.get_loop())},
        "/debug/replicas": {"GET": admin.DebugReplicas(runtime)},
        "/debug/explain": {"POST": Explain(runtime, limits)},
        "/debug/shadow": {"GET": DebugShadow(runtime)},
        "/internal/snapshot": {"GET": admin.Snapshot(runtime)},
    }


class Gateway:
    """Finds the handler, gives the request its id, and lets no error out but in our shape."""

    def __init__(
        self,
        find: Callable[[str], Mapping[str, Handler]],
        cors: Cors,
        quick: Quick | None = None,
    ) -> None:
        """`find`: a path's handlers by method."""
        self._find = find
        self._cors = cors
        self._quick = quick

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        request_id = request[replies.REQUEST_ID] = request_id_of(request.headers)
        request[replies.EXTRA_HEADERS] = cors = self._cors.headers(request.headers)
        try:
            methods = self._find(request.path)
            if (handler := methods.get(request.method)) is not None:
                return await handler(request)
            if cors and request.method == "OPTIONS":
                return self._cors.preflight(request)
            error = _unknown(request, methods)
        except RouterError as exc:
            error = exc
        except ConnectionError:
            raise
        except Exception:
            log.exception("request %s failed by a bug", request_id)
            error = _failed(request_id)
        response = replies.error_response(error, request_id)
        response.headers.update(cors)
        _refuse_rest(request, response)
        return response

    async def answer(self, request: QuickRequest) -> bool:
        """The same for a quick request. Whether its connection may carry another."""
        assert self._quick is not None
        request_id = request_id_of(request.headers)
        cors = self._cors.headers(request.headers)
        try:
            return (await self._quick(request, request_id, cors)).keeps_alive
        except RouterError as exc:
            error = exc
        except ConnectionError:
            raise
        except Exception:
            log.exception("request %s failed by a bug", request_id)
            error = _failed(request_id)
        keeps_alive = not request.missing
        if (transport := request.transport) is not None:
            reply = replies.error_bytes(error, request_id, cors, keeps_alive=keeps_alive)
            transport.write(reply)
        return keeps_alive


def _failed(request_id: str) -> RouterError:
    return RouterError(f"The router failed. Its log knows more, under {request_id}.")


def request_id_of(headers: Mapping[str, str]) -> str:
    """The client's own id if it is a sane one, else a new one."""
    given = headers.get(replies.REQUEST_ID_HEADER)
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return f"{getrandbits(128):032x}"


def _refuse_rest(request: web.BaseRequest, response: web.Response) -> None:
    """What follows on the connection may be the rest of a body that nobody reads."""
    if request.content.is_eof():
        return
    response.force_close()
    if request.content.exception() is not None:
        # aiohttp would read on, and log the exception as a bug of ours
        request.content.feed_eof()


def _unknown(request: web.BaseRequest, methods: Mapping[str, Handler]) -> RouterError:
    if not methods:
        return RouteNotFound(
            f"No {request.method} {request.path} here. "
            "Generations go to /v1/chat/completions or /v1/completions."
        )
    return MethodNotAllowed(f"{request.path} takes {', '.join(methods)}, not {request.method}.")
