"""What the gateway itself answers: errors in OpenAI's shape, and the headers it adds."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from router.errors import RouterError

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
    body = {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": None,
            "code": error.code,
        }
    }
    response = json_response(body, error.status)
    if request_id:
        response.headers[REQUEST_ID_HEADER] = request_id
    response.headers.update(error.headers)
    if error.retry_after_s is not None:
        response.headers["retry-after"] = f"{max(1, round(error.retry_after_s))}"
    return response
