"""Reads and checks the settings. Only the builders read this.

One YAML file, then `WARMGATE__SECTION__KEY` from the environment, then `--set section.key=value`;
later wins. An unknown key or a wrong type is an error that names its path.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml

from router.replicas import Replica
from router.replicas.times import ProbeTimes
from router.routing import POLICIES
from router.settings import (
    HealthSettings,
    ReplicaSettings,
    RouterConfig,
)

ENVIRONMENT_PREFIX = "WARMGATE__"
NO_SESSION = frozenset(
    {
        "authorization", "proxy-authorization", "x-api-key", "api-key", "cookie",
        "x-request-id", "x-correlation-id", "traceparent", "tracestate",
        "forwarded", "x-forwarded-for", "x-real-ip", "x-client-ip", "true-client-ip",
    }
)  # fmt: skip
"""Request ids are new each time; an address or a key is of all of one client's conversations."""


class ConfigError(ValueError):
    """The configuration can't be used; the message says which setting and why."""


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> RouterConfig:
    """Merge file, environment and `section.key=value` overrides. ConfigError says what is wrong."""
    tree = _read_file(path) if path is not None else {}
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _put(tree, keys, text, name)
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign:
            raise ConfigError(f"--set {override}: expected section.key=value")
        _put(tree, _path(key), text, f"--set {key}")
    return parse_config(tree)


def _path(key: str) -> list[str]:
    """Section and key, with `-` for `_`; what follows is a name (a model's) and taken as it is."""
    section, *rest = key.split(".", 2)
    return [section.replace("-", "_"), *(part.replace("-", "_") for part in rest[:1]), *rest[1:]]


def parse_config(tree: Mapping[str, Any]) -> RouterConfig:
    """Check a tree of plain values against the settings."""
    try:
        config = msgspec.convert(tree, RouterConfig)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from exc
    for setting, names in (
        ("policy", (config.routing.policy,)),
        ("shadow", config.routing.shadow),
    ):
        if unknown := [name for name in names if name not in POLICIES]:
            raise ConfigError(
                f"routing.{setting} is {unknown[0]!r}; known are {', '.join(POLICIES)}"
            )
        if len(set(names)) < len(names):
            raise ConfigError(f"routing.{setting}: a policy is named twice")
    if config.routing.policy in config.routing.shadow:
        raise ConfigError(f"routing.shadow: {config.routing.policy} is the policy that acts")
    if never := [n for n in config.routing.session_headers if n.lower() in NO_SESSION]:
        raise ConfigError(
            f"routing.session_headers: {never[0]} names a request, an address or a credential, "
            "not a session"
        )
    _check_discovery(config)
    ids = [replica.id for replica in config.replicas]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise ConfigError(f"replicas: the id {', '.join(sorted(twice))} is used more than once")
    return config


def parse_replicas(text: bytes) -> list[Replica]:
    """The list `replicas` of a YAML file that has nothing else. ConfigError says what is wrong."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ConfigError(f"no YAML: {exc}") from exc
    if not isinstance(tree, dict) or set(tree) != {"replicas"}:
        raise ConfigError("expected one key at the top, `replicas`")
    return [to_replica(settings) for settings in parse_config(tree).replicas]


def parse_replica(text: str) -> dict[str, Any]:
    """A replica from a flag: `id=r1,url=http://…[,events=tcp://…][,replay=tcp://…]`, or a URL."""
    if "=" not in text.split("://")[0]:
        return {"id": text.split("://")[-1].rstrip("/"), "url": text}
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    values: dict[str, Any] = dict(pairs)
    numbers = pairs.keys() & {"rank", "cache_tokens", "distance_ms"}
    values |= {key: _scalar(pairs[key]) for key in numbers}
    return values


def to_replica(settings: ReplicaSettings) -> Replica:
    """The replica that these settings describe."""
    return Replica(
        id=settings.id,
        url=settings.url.rstrip("/"),
        events_url=settings.events,
        replay_url=settings.replay,
        topic=settings.topic,
        rank=settings.rank,
        cache_tokens=settings.cache_tokens,
        distance_ms=settings.distance_ms,
    )


def probe_times(health: HealthSettings) -> ProbeTimes:
    """The prober's share of these settings."""
    return ProbeTimes(health.interval_s, health.retry_interval_s, health.timeout_s, health.failures)


def describe() -> Iterator[tuple[str, str, str]]:
    """(dotted name, default, sentence) of every setting, in the order of this file."""
    sections = {name: hint for name, hint in _hints(RouterConfig).items() if name != "replicas"}
    sections["replicas[]"] = ReplicaSettings
    for section, kind in sections.items():
        defaults = {f.name: f for f in msgspec.structs.fields(kind)}
        for name, hint in _hints(kind).items():
            meta = next(m for m in hint.__metadata__ if m.description)
            yield f"{section}.{name}", _shown(defaults[name]), meta.description


def _check_discovery(config: RouterConfig) -> None:
    told = config.discovery
    if told.source != "static" and config.replicas:
        raise ConfigError(f"replicas: must be empty while discovery.source is {told.source}")
    if told.source == "file" and told.file is None:
        raise ConfigError("discovery.file: missing")
    if told.source == "dns" and told.name is None:
        raise ConfigError("discovery.name: missing")
    ways = [told.selector, told.service, told.inference_pool]
    if told.source == "kubernetes" and sum(way is not None for way in ways) != 1:
        raise ConfigError("discovery: give one of selector, service and inference_pool")


def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _shown(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else {}
    return msgspec.json.encode(default).decode() if default is not None else "none"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is no YAML: {exc}") from exc
    if not isinstance(tree or {}, dict):
        raise ConfigError(f"{path}: expected a mapping of sections at the top")
    return tree or {}


def _put(tree: dict[str, Any], keys: Sequence[str], text: str, where: str) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{where}: {key} is no section")
    tree[keys[-1]] = _scalar(text)


def _scalar(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
