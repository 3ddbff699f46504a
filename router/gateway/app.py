"""Routes, and the one border where errors become replies."""

import logging
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import RouterError
from router.gateway import admin, replies
from router.gateway.generate import generate, request_id_of
from router.runtime import RUNTIME, Runtime

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


def build_app(runtime: Runtime, max_body_bytes: int) -> web.Application:
    """The application; nothing in it owns anything, `runtime` does."""
    app = web.Application(client_max_size=max_body_bytes, middlewares=[_border(max_body_bytes)])
    app[RUNTIME] = runtime
    for path in GENERATION_PATHS:
        app.router.add_post(path, generate)
    app.router.add_get("/v1/models", admin.models)
    app.router.add_get("/healthz", admin.healthz)
    app.router.add_get("/readyz", admin.readyz)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/debug/replicas", admin.debug_replicas)
    return app


def _border(max_body_bytes: int) -> Middleware:
    @web.middleware
    async def border(request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = request[replies.REQUEST_ID] = request_id_of(request)
        try:
            return await handler(request)
        except RouterError as exc:
            error = exc
        except web.HTTPException as exc:
            error = replies.translate(exc, request, max_body_bytes)
        except Exception:
            log.exception("request %s failed by a bug", request_id)
            error = RouterError(f"The router failed. Its log knows more, under {request_id}.")
        return replies.error_response(error, request_id)

    return border
