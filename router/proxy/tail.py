"""The end of a reply, where its usage and its error stand."""

from router.openai.usage import Usage, find_usage
from router.proxy.sse import holds_error, says_too_long


class Tail:
    """Keeps the last bytes of a reply: at least `limit`, at most twice as many."""

    __slots__ = ("_data", "_limit")

    def __init__(self, limit: int) -> None:
        self._data = bytearray()
        self._limit = limit

    def add(self, data: bytes) -> None:
        kept = self._data
        kept += data
        if len(kept) > 2 * self._limit:
            del kept[: -self._limit]

    def usage(self) -> Usage | None:
        return find_usage(bytes(self._data))

    def blames_client(self) -> bool:
        """An error for a prompt that is too long: some engines answer 500 for it."""
        return says_too_long(bytes(self._data))

    def holds_error(self) -> bool:
        """The engine itself ended the stream with an error event."""
        return holds_error(bytes(self._data))
