"""Every setting: its unit, default, range and a sentence. Only the builders read this.

One YAML file, then `WARMGATE__SECTION__KEY` from the environment, then `--set section.key=value`;
later wins. An unknown key or a wrong type is an error that names its path.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from router.replicas import Replica
from router.routing import POLICIES

ENVIRONMENT_PREFIX = "WARMGATE__"


class ConfigError(ValueError):
    """The configuration can't be used; the message says which setting and why."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section. Its fields' `Meta` descriptions are the documentation."""


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


Seconds = float
Port = Annotated[int, Meta(ge=0, le=65535)]


class ReplicaSettings(Settings, frozen=True):
    """One replica: an engine with one KV cache."""

    id: Annotated[str, _doc("Its name in metrics, logs and headers.", min_length=1)]
    url: Annotated[str, _doc("Base URL of its HTTP API.", pattern=r"^https?://[^/\s]+")]
    events: Annotated[str | None, _doc("ZeroMQ endpoint of its KV events; empty: none.")] = None
    replay: Annotated[str | None, _doc("ZeroMQ endpoint that replays past events.")] = None
    topic: Annotated[str, _doc("Prefix of the topics to subscribe to.")] = ""
    rank: Annotated[int | None, _doc("Data-parallel rank behind a URL that several share.")] = None


class ListenSettings(Settings, frozen=True):
    """Where clients connect, and how the router stops."""

    host: Annotated[str, _doc("Address to bind.")] = "127.0.0.1"
    port: Annotated[Port, _doc("Port to bind; 0 takes a free one and prints it.")] = 8080
    max_body_bytes: Annotated[int, _doc("Longest request body, in bytes.", ge=1024)] = 64 * 2**20
    settle_s: Annotated[
        Seconds, _doc("After SIGTERM: /readyz is 503 for so long before connecting ends.", ge=0)
    ] = 0.0
    drain_s: Annotated[Seconds, _doc("Longest wait for streams in flight to end.", ge=0)] = 30.0
    decision_headers: Annotated[
        bool, _doc("Whether replies name the replica, the match and the reason in headers.")
    ] = True


class RoutingSettings(Settings, frozen=True):
    """How a replica is chosen."""

    policy: Annotated[str, _doc("One of " + ", ".join(POLICIES) + ".")] = "cache-aware"
    session_headers: Annotated[
        tuple[str, ...], _doc("Request headers that name a session, first found wins.")
    ] = ("x-session-id",)


class EngineSettings(Settings, frozen=True):
    """What a model's engine was told about its prompts."""

    chat_template: Annotated[
        str | None, _doc("--chat-template: a file, or the template itself.")
    ] = None
    content_format: Annotated[
        Literal["auto", "string", "openai"], _doc("--chat-template-content-format.")
    ] = "auto"
    chat_template_kwargs: Annotated[dict[str, Any], _doc("--default-chat-template-kwargs.")] = {}


class TokensSettings(Settings, frozen=True):
    """How prompts become the token ids that the engine will see."""

    default: Annotated[
        str | None, _doc("Directory with tokenizer.json for all models not named in `models`.")
    ] = None
    models: Annotated[dict[str, str], _doc("Directory by model name.")] = {}
    remote: Annotated[bool, _doc("Ask a replica's /tokenize for models without a directory.")] = (
        True
    )
    deadline_ms: Annotated[
        float, _doc("After this long a request is routed without its prefix.", gt=0)
    ] = 1000.0
    engines: Annotated[
        dict[str, EngineSettings],
        _doc(
            "By model, flags that its engine was given: `chat_template` (a file, or the template), "
            "`content_format` (auto, string, openai), `chat_template_kwargs`."
        ),
    ] = {}
    judge_share: Annotated[
        float, _doc("Share of prompts that are compared with a replica's /tokenize.", ge=0, le=1)
    ] = 0.01
    forward_ids: Annotated[
        bool, _doc("Send completions on as token ids, so that engines need not tokenize again.")
    ] = False
    memo_bytes: Annotated[int, _doc("Bound of remembered text and tokens, in bytes.", ge=0)] = (
        256 * 2**20
    )


class EventsSettings(Settings, frozen=True):
    """How the index learns what replicas hold."""

    bind: Annotated[
        str | None, _doc("ZeroMQ endpoint to bind, for engines that connect to the router.")
    ] = None
    replay_timeout_s: Annotated[Seconds, _doc("Longest wait for one replay.", gt=0)] = 10.0


class IndexSettings(Settings, frozen=True):
    """What the index may take."""

    max_bytes: Annotated[
        int,
        _doc("Bound of the index, in bytes; a (block, replica) pair takes 30 to 60.", ge=2**20),
    ] = 512 * 2**20


class ForwardSettings(Settings, frozen=True):
    """Limits towards replicas."""

    connect_timeout_s: Annotated[Seconds, _doc("Longest time to connect.", gt=0)] = 2.0
    first_byte_timeout_s: Annotated[
        Seconds, _doc("Longest time to the first byte of a reply's body.", gt=0)
    ] = 600.0
    idle_timeout_s: Annotated[
        Seconds, _doc("Longest silence between two bytes of a reply.", gt=0)
    ] = 60.0
    buffer_bytes: Annotated[
        int, _doc("Bytes held for a slow client before its replica is paused.", ge=4096)
    ] = 64 * 2**10


class HealthSettings(Settings, frozen=True):
    """Active probes of replicas."""

    interval_s: Annotated[Seconds, _doc("Between probes of a healthy replica.", gt=0)] = 5.0
    retry_interval_s: Annotated[Seconds, _doc("Between probes of one that is down.", gt=0)] = 0.5
    timeout_s: Annotated[Seconds, _doc("Longest time for one probe.", gt=0)] = 2.0
    failures: Annotated[
        int, _doc("Probes in a row that fail before it is out; a refused one: at once.", ge=1)
    ] = 2


class LogSettings(Settings, frozen=True):
    """What is logged, to stderr."""

    level: Annotated[str, _doc("debug, info, warning or error.")] = "info"
    access: Annotated[bool, _doc("One line of JSON per request.")] = False


class RouterConfig(Settings, frozen=True):
    """All of it."""

    listen: ListenSettings = ListenSettings()
    replicas: tuple[ReplicaSettings, ...] = ()
    routing: RoutingSettings = RoutingSettings()
    tokens: TokensSettings = TokensSettings()
    events: EventsSettings = EventsSettings()
    index: IndexSettings = IndexSettings()
    forward: ForwardSettings = ForwardSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()


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
        _put(tree, key.replace("-", "_").split("."), text, f"--set {key}")
    return parse_config(tree)


def parse_config(tree: Mapping[str, Any]) -> RouterConfig:
    """Check a tree of plain values against the settings."""
    try:
        config = msgspec.convert(tree, RouterConfig)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from exc
    if config.routing.policy not in POLICIES:
        raise ConfigError(
            f"routing.policy is {config.routing.policy!r}; known are {', '.join(POLICIES)}"
        )
    ids = [replica.id for replica in config.replicas]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise ConfigError(f"replicas: the id {', '.join(sorted(twice))} is used more than once")
    return config


def parse_replica(text: str) -> dict[str, Any]:
    """A replica from a flag: `id=r1,url=http://…[,events=tcp://…][,replay=tcp://…]`, or a URL."""
    if "=" not in text.split("://")[0]:
        return {"id": text.split("://")[-1].rstrip("/"), "url": text}
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    values: dict[str, Any] = dict(pairs)
    if "rank" in pairs:
        values["rank"] = _scalar(pairs["rank"])
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
    )


def describe() -> Iterator[tuple[str, str, str]]:
    """(dotted name, default, sentence) of every setting, in the order of this file."""
    sections = {name: hint for name, hint in _hints(RouterConfig).items() if name != "replicas"}
    sections["replicas[]"] = ReplicaSettings
    for section, kind in sections.items():
        defaults = {f.name: f for f in msgspec.structs.fields(kind)}
        for name, hint in _hints(kind).items():
            meta = next(m for m in hint.__metadata__ if m.description)
            yield f"{section}.{name}", _shown(defaults[name]), meta.description


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
