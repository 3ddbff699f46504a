"""A client of Redis from a URL: one server, Sentinel or Cluster."""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

PLAIN: Final = ("redis", "rediss", "unix")
SENTINEL: Final = ("redis+sentinel", "rediss+sentinel")
CLUSTER: Final = ("redis+cluster", "rediss+cluster")


class BadUrl(ValueError):
    """The URL names no Redis; the message says what is wrong, without its password."""


def connect(url: str, deadline_s: float) -> Any:
    """A client that has not connected yet. BadUrl.

    `redis://[user:password@]host[:port][/db]`, `rediss://` with TLS (`?ssl_ca_certs=…`),
    `unix://path`, `redis+sentinel://host[:port],host…/master[/db]`,
    `redis+cluster://host[:port],host…`; `rediss+…` with TLS. No command is tried twice: whoever
    asks has a deadline, and asks again soon.
    """
    from redis.asyncio import Redis  # a fifth of a start's time: for those who use it

    scheme = url.partition("://")[0]
    options: dict[str, Any] = {
        "socket_timeout": deadline_s,
        "socket_connect_timeout": deadline_s,
    }
    try:
        if scheme in PLAIN:
            return Redis.from_url(url, retry=_once(), **options)
        if scheme in SENTINEL:
            return _sentinel(url, options)
        if scheme in CLUSTER:
            return _cluster(url, options)
    except (ValueError, TypeError) as exc:
        raise BadUrl(f"no usable {scheme} URL: {exc}") from exc
    known = ", ".join((*PLAIN, *SENTINEL, *CLUSTER))
    raise BadUrl(f"{scheme!r} is none of {known}")


def _once() -> Any:
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    return Retry(NoBackoff(), 0)


def _sentinel(url: str, options: dict[str, Any]) -> Any:
    from redis.asyncio.sentinel import Sentinel

    hosts, login, path = _parts(url, 26379)
    if not path:
        raise ValueError("the path must name the master")
    options |= {**login, "retry": _once()}
    if len(path) > 1:
        options["db"] = int(path[1])
    asking = {key: options[key] for key in ("socket_timeout", "socket_connect_timeout")}
    made: Any = Sentinel
    return made(hosts, sentinel_kwargs=asking, **options).master_for(path[0])


def _cluster(url: str, options: dict[str, Any]) -> Any:
    from redis.asyncio import RedisCluster
    from redis.asyncio.cluster import ClusterNode

    hosts, login, _ = _parts(url, 6379)
    nodes = [ClusterNode(host, port) for host, port in hosts]
    return RedisCluster(startup_nodes=nodes, **login, **options)


def _parts(url: str, port: int) -> tuple[list[tuple[str, int]], dict[str, Any], list[str]]:
    """(host, port) of all, options of login and TLS, segments of the path."""
    split = urlsplit(url)
    user, _, hosts = split.netloc.rpartition("@")
    if not hosts:
        raise ValueError("no host")
    found = []
    for text in hosts.split(","):
        host, sign, given = text.rpartition(":")
        found.append((host, int(given)) if sign else (given, port))
    login: dict[str, Any] = dict(parse_qsl(split.query))
    if user:
        name, _, password = user.partition(":")
        login |= {"username": unquote(name) or None, "password": unquote(password)}
    if split.scheme.startswith("rediss"):
        login["ssl"] = True
    return found, login, [segment for segment in split.path.split("/") if segment]
