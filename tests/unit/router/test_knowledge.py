"""Whether one central index is asked, or each process has its own."""

import pytest

from router import knowledge
from router.index_settings import IndexSettings

ADDRESS = "tcp://index.example:7400"


@pytest.fixture(autouse=True)
def _can_share(monkeypatch):
    monkeypatch.setattr(knowledge, "CAN_SHARE", True)


@pytest.mark.parametrize(
    ("settings", "processes", "expected"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"address": ADDRESS}, 1, True),
        ({"tiers": {"cpu": 5.0}}, 2, False),
        ({"mode": "local"}, 2, False),
        ({"mode": "local", "address": ADDRESS}, 2, False),
        ({"mode": "shared"}, 1, True),
        ({"mode": "shared", "tiers": {"cpu": 5.0}}, 2, True),
    ],
)
def test_by_default_processes_that_can_read_one_index_in_place_have_one(
    settings, processes, expected
):
    assert knowledge.is_central(IndexSettings(**settings), processes) is expected


def test_where_memory_cannot_be_read_in_place_each_process_has_its_own(monkeypatch):
    monkeypatch.setattr(knowledge, "CAN_SHARE", False)
    assert not knowledge.is_central(IndexSettings(), 2)
