"""Lines for a collector are one object each, whatever is told."""

import json
import logging

import pytest

from router.log import JsonFormatter, access, write_access_line
from router.record import RequestRecord


@pytest.fixture
def lines():
    """What loggers below `router` say, formatted."""
    told = []

    class Keep(logging.Handler):
        def emit(self, record):
            told.append(self.format(record))

    handler, logger = Keep(), logging.getLogger("router")
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    before = access.level, access.propagate
    access.setLevel(logging.INFO)
    access.propagate = True
    yield told
    access.setLevel(before[0])
    access.propagate = before[1]
    logger.removeHandler(handler)


def test_a_line_says_when_who_and_what(lines):
    logging.getLogger("router.replicas").warning("replica %s is down:\n%s", "r1", 'a "quote"')
    (line,) = lines
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "WARNING", "logger": "router.replicas",
        "message": 'replica r1 is down:\na "quote"',
    }  # fmt: skip


def test_a_request_is_an_object_in_its_line(lines):
    write_access_line(RequestRecord("id-1", 0.0, model="m"))
    told = json.loads(lines[0])
    assert told["logger"] == "router.access"
    assert (told["request"]["request_id"], told["request"]["model"]) == ("id-1", "m")
    assert "message" not in told


def test_a_traceback_stays_in_the_line(lines):
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("router.x").exception("failed")
    assert "\n" not in lines[0]
    assert json.loads(lines[0])["exception"].endswith("ValueError: bad")
