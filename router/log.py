"""Logging: rare lines for people, and one JSON line per request when that is switched on."""

import logging
import sys

import msgspec

from router.record import RequestRecord

access = logging.getLogger("router.access")
_encoder = msgspec.json.Encoder()


def configure(level: str, *, access_log: bool) -> None:
    """Send log lines to stderr. `level`: debug, info, warning or error."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    access.setLevel(logging.INFO if access_log else logging.CRITICAL)
    access.propagate = access_log


def write_access_line(record: RequestRecord) -> None:
    """The request's record as one line of JSON; fields are RequestRecord's."""
    if access.isEnabledFor(logging.INFO):
        access.info(_encoder.encode(record).decode())
