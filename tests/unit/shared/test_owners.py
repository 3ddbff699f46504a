"""Who keeps which response: remembered for a time, bounded, and read from any version's value."""

import msgspec

from router.shared import MemoryOwners
from router.shared.owners import _read


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def test_it_is_known_until_its_time_is_over():
    clock = Clock()
    owners = MemoryOwners(clock, ttl_s=10, max_entries=100)
    owners.note("a", "r1")
    clock.now = 9.0
    assert await owners.find("a") == "r1"
    clock.now = 10.0
    assert await owners.find("a") is None
    assert owners.counts == {"here": 1, "unknown": 1}


async def test_of_too_many_those_that_were_noted_first_are_forgotten():
    owners = MemoryOwners(Clock(), ttl_s=10, max_entries=2)
    for name in ("a", "b", "a", "c"):
        owners.note(name, f"of {name}")
    assert len(owners) == 2
    assert [await owners.find(name) for name in "abc"] == ["of a", None, "of c"]


def test_a_later_version_may_append_to_a_value():
    assert _read(msgspec.msgpack.encode(["r1", {"of": "a later version"}])) == "r1"


def test_what_no_version_has_written_is_nobody():
    for data in (None, b"", b"r1", msgspec.msgpack.encode([]), msgspec.msgpack.encode([1])):
        assert _read(data) is None
