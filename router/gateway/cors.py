"""Browsers: which pages of other origins may read our replies."""

from collections.abc import Mapping, Sequence

from aiohttp import web

_NO_HEADERS: Mapping[str, str] = {}
_EXPOSED = "x-request-id, x-warmgate-replica, x-warmgate-matched-blocks, x-warmgate-reason"
_MAX_AGE_S = "600"


class Cors:
    """Knows the listed origins; `*` lists all. Without any, browsers get no permission."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, request: web.BaseRequest) -> Mapping[str, str]:
        """What a reply to this request's origin says besides; empty if it isn't listed."""
        if not self._origins:
            return _NO_HEADERS
        origin = request.headers.get("Origin", "")
        if not origin or ("*" not in self._origins and origin not in self._origins):
            return _NO_HEADERS
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _EXPOSED,
            "Vary": "Origin",
        }

    def preflight(self, request: web.BaseRequest) -> web.Response:
        """The answer to a browser that asks before it sends."""
        asked = request.headers.get("Access-Control-Request-Headers", "content-type, authorization")
        return web.Response(
            status=204,
            headers={
                **self.headers(request),
                "Access-Control-Allow-Methods": "GET, POST",
                "Access-Control-Allow-Headers": asked,
                "Access-Control-Max-Age": _MAX_AGE_S,
            },
        )
