"""Keys spread evenly, and move only when they must."""

from collections import Counter

from router.routing.ring import Ring

KEYS = [f"key {number}" for number in range(4000)]
IDS = [f"r{number}" for number in range(8)]


def test_every_replica_is_home_to_its_share_of_keys():
    ring = Ring()
    homes = Counter(ring.order(key, IDS)[0] for key in KEYS)
    assert max(homes.values()) < 1.25 * len(KEYS) / len(IDS)
    assert min(homes.values()) > 0.75 * len(KEYS) / len(IDS)


def test_a_replica_that_leaves_moves_only_its_own_keys_to_all_others():
    ring, moved = Ring(), Counter[str]()
    for key in KEYS:
        before, after = ring.order(key, IDS), ring.order(key, IDS[1:])
        assert after == [replica_id for replica_id in before if replica_id != "r0"]
        if before[0] == "r0":
            moved[after[0]] += 1
    assert set(moved) == set(IDS[1:])


def test_a_replica_that_joins_takes_one_share_and_nothing_else_moves():
    ring = Ring()
    homes = [(ring.order(key, IDS)[0], ring.order(key, [*IDS, "r8"])[0]) for key in KEYS]
    moved = [(old, new) for old, new in homes if old != new]
    assert {new for _, new in moved} == {"r8"}
    assert len(moved) < 1.25 * len(KEYS) / 9


def test_two_rings_agree_whatever_they_were_asked_before():
    one, other = Ring(), Ring()
    other.order("another key", ["r7", "elsewhere"])
    assert one.order("key", IDS) == other.order("key", IDS[::-1])


def test_a_key_whose_home_was_moved_goes_there_first_and_then_as_ever():
    ring, names = Ring(), ["r1", "r2", "r3", "r4"]
    usual = ring.order("key", names)
    moved = ring.order("key", names, usual[2])
    assert moved == [usual[2], usual[0], usual[1], usual[3]]
    assert ring.order("key", names, "gone") == usual


def test_a_name_that_is_no_text_has_a_home():
    assert sorted(Ring().order("\udcff \ud800", ["r1", "r2"])) == ["r1", "r2"]


def test_replicas_that_come_and_go_for_ever_are_forgotten_and_change_no_order(monkeypatch):
    monkeypatch.setattr("router.routing.ring.MAX_STRANGERS", 8)
    ring = Ring()
    usual = {key: ring.order(key, IDS) for key in KEYS[:50]}
    for churned in range(40):
        ring.order("any", [*IDS, f"pod-{churned}"])
        assert len(ring._members) <= 2 * (len(IDS) + 1) + 8
    assert {key: ring.order(key, IDS) for key in usual} == usual
