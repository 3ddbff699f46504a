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

    def headers(self, asked: Mapping[str, str]) -> Mapping[str, str]:
        """What a reply to the origin of these headers says besides; empty if it isn't listed."""
        if not self._origins:
            return _NO_HEADERS
        origin = asked.get("origin", "")
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
                **self.headers(request.headers),
                "Access-Control-Allow-Methods": "GET, POST, DELETE",
                "Access-Control-Allow-Headers": asked,
                "Access-Control-Max-Age": _MAX_AGE_S,
            },
        )
