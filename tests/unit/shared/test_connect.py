"""URLs of Redis: one server, Sentinel, Cluster; a wrong one is an error without its password."""

import pytest

from router.shared import BadUrl, connect


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@127.0.0.1:1/2",
        "rediss://127.0.0.1:1",
        "unix:///nowhere.sock",
        "redis+sentinel://:secret@one:26379,two/mymaster/1",
        "redis+cluster://user:secret@one:7000,two:7001",
    ],
)
def test_a_client_is_made_without_connecting(url):
    assert connect(url, 0.1) is not None


@pytest.mark.parametrize(
    "url",
    ["http://:secret@one", "secret", "redis+sentinel://:secret@one", "redis+cluster://",
     "redis://:secret@one:port"],
)  # fmt: skip
def test_a_wrong_url_is_an_error_without_its_password(url):
    with pytest.raises(BadUrl) as caught:
        connect(url, 0.1)
    assert url == "secret" or "secret" not in str(caught.value)
