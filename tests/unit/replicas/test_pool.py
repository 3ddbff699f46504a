"""The pool takes full sets, and tells who joined, who left and who can serve."""

from dataclasses import replace

from router.replicas import Pool
from tests.support.builders import ManualClock, model_rows, replica


def pool_of(*replicas):
    pool = Pool(ManualClock())
    pool.reconcile(replicas)
    return pool


def test_reconciling_tells_who_joined_and_who_left():
    pool = pool_of(replica("r1"), replica("r2"))
    changes = pool.reconcile([replica("r2"), replica("r3")])
    assert [m.id for m in changes.joined] == ["r3"]
    assert [m.id for m in changes.left] == ["r1"]
    assert sorted(m.id for m in pool) == ["r2", "r3"]


def test_a_replica_whose_address_changed_is_a_new_one():
    pool = pool_of(replica("r1", "http://127.0.0.1:1"))
    pool.mark_up("r1", model_rows("m"))
    changes = pool.reconcile([replica("r1", "http://127.0.0.1:2")])
    assert len(changes.joined) == len(changes.left) == 1
    assert pool.available("m") == []


def test_only_healthy_replicas_that_serve_the_model_are_available():
    pool = pool_of(replica("r1"), replica("r2"), replica("r3"))
    pool.mark_up("r1", model_rows("m"))
    pool.mark_up("r2", model_rows("other"))
    assert [m.id for m in pool.available("m")] == ["r1"]
    assert pool.serves("m")
    assert not pool.serves("unknown")


def test_a_replica_that_is_down_is_known_but_not_available():
    pool = pool_of(replica("r1"))
    pool.mark_up("r1", model_rows("m"))
    pool.mark_down("r1", "refused")
    assert pool.available("m") == []
    assert not pool.serves("m")
    assert pool.knows("m")
    assert repr(pool.get("r1")) == "<Member r1 unhealthy (refused)>"


def test_health_changes_are_told_once():
    seen = []
    pool = pool_of(replica("r1"))
    pool.on_health.append(lambda member: seen.append(member.is_healthy))
    for _ in range(2):
        pool.mark_up("r1", model_rows("m"))
    for _ in range(2):
        pool.mark_down("r1", "refused")
    assert seen == [True, False]


def test_a_late_probe_of_a_replica_that_left_changes_nothing():
    pool = pool_of()
    pool.mark_up("gone", model_rows("m"))
    pool.mark_down("gone", "refused")
    assert len(pool) == 0


def test_a_model_whose_parent_is_served_beside_it_is_an_adapter():
    pool = pool_of(replica("r1"))
    pool.mark_up("r1", model_rows("base", "style", adapter_of="base"))
    member = pool.get("r1")
    assert member.is_adapter("style")
    assert not member.is_adapter("base")


def test_a_declared_model_is_known_before_the_engine_has_told_and_its_own_word_counts_after():
    pool = pool_of(replica("r1", model="declared"))
    assert pool.knows("declared")
    assert pool.available("declared") == []
    pool.mark_up("r1", model_rows("told"))
    assert not pool.knows("declared")
    assert [m.id for m in pool.available("told")] == ["r1"]


def test_a_declared_model_is_what_an_engine_without_a_list_serves():
    pool = pool_of(replica("r1", model="declared"))
    pool.mark_up("r1", {})
    assert [m.base_model for m in pool.available("declared")] == ["declared"]


def test_declared_adapters_are_served_beside_what_the_engine_lists():
    pool = pool_of(replica("r1", adapters=("style", "listed")))
    pool.mark_up("r1", model_rows("base", "listed", adapter_of="base"))
    member = pool.get("r1")
    assert sorted(member.models) == ["base", "listed", "style"]
    assert member.is_adapter("style")
    assert member.base_model == "base"


def test_another_label_is_no_other_replica():
    pool = pool_of(replica("r1", adapters=("style",)))
    pool.mark_up("r1", model_rows("base"))
    member = pool.get("r1")
    changes = pool.reconcile([replace(member.replica, adapters=("other",))])
    assert (changes.joined, changes.left) == ((), ())
    assert pool.get("r1") is member
    assert sorted(member.models) == ["base", "other"]


def test_who_only_prefills_or_encodes_is_not_for_clients():
    pool = pool_of(*(replica(role, role=role) for role in ("both", "decode", "prefill", "encode")))
    for member in pool:
        pool.mark_up(member.id, model_rows("m"))
    assert [m.id for m in pool.available("m")] == ["both", "decode"]
    pool.reconcile([replica("both", role="prefill"), replica("prefill")])
    assert [m.id for m in pool.available("m")] == ["prefill"]
