"""What the gateway itself answers: errors in OpenAI's shape, and the headers it adds."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from router.errors import RouterError
from router.proxy.headers import Ours, ours_of

REQUEST_ID: Final = web.RequestKey("request_id", str)
EXTRA_HEADERS: Final = web.RequestKey("extra_headers", Mapping[str, str])
REQUEST_ID_HEADER: Final = "x-request-id"
REPLICA_HEADER: Final = "x-warmgate-replica"
MATCHED_BLOCKS_HEADER: Final = "x-warmgate-matched-blocks"
PROMPT_BLOCKS_HEADER: Final = "x-warmgate-prompt-blocks"
PREDICTED_HIT_HEADER: Final = "x-warmgate-predicted-hit-tokens"
REASON_HEADER: Final = "x-warmgate-reason"


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error_response(error: RouterError, request_id: str) -> web.Response:
    """The error as OpenAI's clients read it: `error.message`, `.type`, `.param`, `.code`."""
    return web.Response(
        body=_body(error),
        status=error.status,
        content_type="application/json",
        headers=_headers(error, request_id),
    )


def error_bytes(
    error: RouterError, request_id: str, extra: Mapping[str, str], *, keeps_alive: bool
) -> bytes:
    """The same reply, as it goes to the client's transport."""
    body = _body(error)
    headers = {
        "Content-Type": "application/json",
        **_headers(error, request_id),
        **extra,
        "Content-Length": str(len(body)),
    }
    if not keeps_alive:
        headers["Connection"] = "close"
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "\r\n"]).encode() + body


def extra_of(request: web.BaseRequest) -> Ours:
    """The further headers of its reply."""
    return ours_of(request[EXTRA_HEADERS].items())


def _body(error: RouterError) -> bytes:
    facts = {"message": error.message, "type": error.type, "param": None, "code": error.code}
    return msgspec.json.encode({"error": facts})


def _headers(error: RouterError, request_id: str) -> dict[str, str]:
    headers = dict(error.headers)
    if request_id:
        headers[REQUEST_ID_HEADER] = request_id
    if error.retry_after_s is not None:
        headers["retry-after"] = f"{max(1, round(error.retry_after_s))}"
    return headers
