"""Keys are kept as hashes, read again when their file changes, and never shown."""

import pytest

from router.tenants import BadKeyFile, KeyFile, hash_key, new_key, read_keys
from tests.support.tenants import key_file


def test_a_key_finds_its_tenant_and_another_finds_none(tmp_path):
    ring = read_keys(key_file(tmp_path / "keys", a={"requests_per_minute": 5}, b={}))
    tenant = ring.find("key-of-a")
    assert tenant is not None
    assert (tenant.id, tenant.requests_per_minute) == ("a", 5)
    assert ring.find("key-of-c") is None
    assert ring.find("") is None
    assert ring.find("\udcff") is None


def test_the_file_holds_no_key(tmp_path):
    assert b"key-of-a" not in key_file(tmp_path / "keys", a={}).read_bytes()


def test_new_keys_differ_and_are_long():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) >= 43 for key in keys)


@pytest.mark.parametrize(
    "text",
    [
        "tenants: 5",
        "tenants: [{id: a, keys: [secret]}]",
        "tenants: [{id: a, surprise: 1}]",
        "tenants: [{id: a, requests_per_minute: -1}]",
        "tenants: [{id: a}, {id: a}]",
        "{",
        f"tenants: [{{id: a, keys: ['{hash_key('x')}']}}, {{id: b, keys: ['{hash_key('x')}']}}]",
    ],
)
def test_a_wrong_file_is_an_error(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text, "utf-8")
    with pytest.raises(BadKeyFile) as caught:
        read_keys(path)
    assert "secret" not in str(caught.value)


def test_a_changed_file_counts_and_a_broken_one_does_not(tmp_path):
    path = key_file(tmp_path / "keys", a={})
    keys = KeyFile(path)
    key_file(path, a={}, new={})
    keys.refresh()
    assert keys.ring.find("key-of-new") is not None
    path.write_text("tenants: nonsense", "utf-8")
    keys.refresh()
    assert keys.ring.find("key-of-new") is not None
    path.unlink()
    keys.refresh()
    assert keys.ring.find("key-of-new") is not None
    key_file(path, b={})
    keys.refresh()
    assert keys.ring.find("key-of-a") is None
    assert keys.ring.find("key-of-b") is not None
