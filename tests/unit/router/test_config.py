"""Settings merge in a documented order, and a mistake is named with its path."""

from pathlib import Path

import pytest

from router import config
from router.config import ConfigError, load_config, parse_replica


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(text)
    return path


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    path = write(tmp_path, "routing: {policy: random}\nlisten: {port: 1, host: a}\n")
    environment = {"WARMGATE__LISTEN__PORT": "2", "WARMGATE__LISTEN__HOST": "b"}
    loaded = load_config(path, ["listen.port=3"], environment)
    assert loaded.listen.port == 3
    assert loaded.listen.host == "b"
    assert loaded.routing.policy == "random"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listen: {prt: 1}", r"unknown field `prt`.*\$\.listen"),
        ("listen: {port: abc}", r"\$\.listen\.port"),
        ("listen: {port: 70000}", r"\$\.listen\.port"),
        ("routing: {policy: nonsense}", "cache-aware"),
        ("replicas: [{id: r1, url: 'ftp://x'}]", r"\$\.replicas\[0\]\.url"),
        ("replicas: [{id: r1, url: 'http://a'}, {id: r1, url: 'http://b'}]", "more than once"),
        ("index: {tiers: {CPU: -1}}", r"\$\.index\.tiers"),
        ("- a list", "mapping"),
        ("listen: {", "no YAML"),
    ],
)
def test_a_mistake_is_named_with_its_path(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        load_config(write(tmp_path, text), (), {})


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "absent.yaml", (), {})


def test_a_replica_flag_is_a_url_or_pairs():
    assert parse_replica("http://a:8000/") == {"id": "a:8000", "url": "http://a:8000/"}
    pairs = parse_replica("id=r1,url=http://a:1,events=tcp://a:2,replay=tcp://a:3,rank=1")
    assert pairs == {
        "id": "r1",
        "url": "http://a:1",
        "events": "tcp://a:2",
        "replay": "tcp://a:3",
        "rank": 1,
    }


def test_a_models_name_may_have_dots_and_dashes():
    loaded = load_config(None, ["tokens.models.llama-3.1-8b=/models/x"], {})
    assert loaded.tokens.models == {"llama-3.1-8b": "/models/x"}


def test_every_setting_has_a_sentence():
    assert all(sentence.endswith(".") for _, _, sentence in config.describe())


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "X-Request-ID", "x-forwarded-for"])
def test_what_names_a_request_an_address_or_a_key_is_no_session(name):
    with pytest.raises(ConfigError, match="not a session"):
        load_config(None, [f"routing.session_headers=[{name}]"], {})
