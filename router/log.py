"""Logging: rare lines for people or for a collector, and one line per request if that is on."""

import logging
import sys
from datetime import UTC, datetime

import msgspec

from router.record import RequestRecord

access = logging.getLogger("router.access")
_encoder = msgspec.json.Encoder()


class JsonFormatter(logging.Formatter):
    """Each line an object: `time` (UTC), `level`, `logger`, and `message` or, of the access log,
    `request`; `exception` has a traceback. None spans two lines."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        if record.name == access.name:
            return _encoder.encode({**told, "request": msgspec.Raw(record.getMessage())}).decode()
        told["message"] = record.getMessage()
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(told).decode()


def configure(level: str, *, access_log: bool, is_json: bool = False) -> None:
    """Send log lines to stderr. `level`: debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    if is_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    access.setLevel(logging.INFO if access_log else logging.CRITICAL)
    access.propagate = access_log


def write_access_line(record: RequestRecord) -> None:
    """The request's record as JSON; fields are RequestRecord's."""
    if access.isEnabledFor(logging.INFO):
        access.info(_encoder.encode(record).decode())
