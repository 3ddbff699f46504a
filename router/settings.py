"""Every setting: its unit, default, range and a sentence."""

from typing import Annotated, Any, Literal

from router.index_settings import IndexSettings as IndexSettings
from router.routing_settings import RoutingSettings
from router.setting_types import Port, Positive, Seconds, Settings
from router.setting_types import doc as _doc
from router.shared_settings import SharedSettings as SharedSettings


class ReplicaSettings(Settings, frozen=True):
    """One replica: an engine with one KV cache."""

    id: Annotated[str, _doc("Its name in metrics, logs and headers.", min_length=1)]
    url: Annotated[str, _doc("Base URL of its HTTP API.", pattern=r"^https?://[^/\s]+")]
    events: Annotated[str | None, _doc("ZeroMQ endpoint of its KV events; empty: none.")] = None
    replay: Annotated[str | None, _doc("ZeroMQ endpoint that replays past events.")] = None
    topic: Annotated[str, _doc("Prefix of the topics to subscribe to.")] = ""
    rank: Annotated[int | None, _doc("Data-parallel rank behind a URL that several share.")] = None
    cache_tokens: Annotated[
        Positive | None, _doc("Tokens that its cache holds; none: what its /metrics says.")
    ] = None
    distance_ms: Annotated[float, _doc("Time on the way to it and back, in ms.", ge=0)] = 0.0


class DiscoverySettings(Settings, frozen=True):
    """Where replicas come from."""

    source: Annotated[
        Literal["static", "file", "dns", "kubernetes"],
        _doc("static: `replicas` and --replica. With another source, these must be empty."),
    ] = "static"
    file: Annotated[str | None, _doc("For file: YAML with `replicas`; changes count.")] = None
    name: Annotated[
        str | None, _doc("For dns: a name whose addresses are replicas, as a headless Service.")
    ] = None
    interval_s: Annotated[Seconds, _doc("Between looks at the file or name.", gt=0)] = 1.0
    namespace: Annotated[str | None, _doc("For kubernetes: the pods'; none: the router's.")] = None
    selector: Annotated[str | None, _doc("For kubernetes: label selector of pods.")] = None
    service: Annotated[str | None, _doc("For kubernetes, instead: a Service's endpoints.")] = None
    inference_pool: Annotated[
        str | None, _doc("For kubernetes, instead: an InferencePool, by its selector of pods.")
    ] = None
    labels: Annotated[
        dict[Literal["model", "adapter", "role"], str],
        _doc("Other names of the labels warmgate/model, warmgate/adapter and warmgate/role."),
    ] = {}
    relist_s: Annotated[
        Seconds, _doc("Longest time until what a watch has missed is put right.", ge=1)
    ] = 20.0
    kubeconfig: Annotated[str | None, _doc("Rights from this file, not from the pod.")] = None
    scheme: Annotated[Literal["http", "https"], _doc("Of discovered replicas' URLs.")] = "http"
    port: Annotated[Port, _doc("HTTP port of discovered replicas; annotations go before.")] = 8000
    events_port: Annotated[
        Port | None, _doc("Port of their KV events; none: they are asked at /kv_event_sources.")
    ] = None
    replay_port: Annotated[Port | None, _doc("Port that replays their past events.")] = None
    topic: Annotated[str, _doc("Prefix of the topics to subscribe to.")] = ""
    ranks: Annotated[int, _doc("Data-parallel ranks behind each address.", ge=1)] = 1


class ListenSettings(Settings, frozen=True):
    """Where clients connect, and how the router stops."""

    host: Annotated[str, _doc("Address to bind.")] = "127.0.0.1"
    port: Annotated[Port, _doc("Port to bind; 0 takes a free one and prints it.")] = 8080
    max_body_bytes: Annotated[int, _doc("Longest request body, in bytes.", ge=1024)] = 64 * 2**20
    settle_s: Annotated[
        Seconds, _doc("After SIGTERM: /readyz is 503 for so long before connecting ends.", ge=0)
    ] = 0.0
    drain_s: Annotated[Seconds, _doc("Longest wait for streams in flight to end.", ge=0)] = 30.0
    reuse_port: Annotated[bool, _doc("Whether other processes may listen there too.")] = False
    sockets: Annotated[
        tuple[int, ...], _doc("Listening sockets that are inherited; --processes makes them.")
    ] = ()
    unix_path: Annotated[str | None, _doc("Unix socket to listen on as well.")] = None
    admin_port: Annotated[
        Port | None,
        _doc("Port of a thread of its own for probes, metrics and debug; none: the clients' port."),
    ] = None
    tls_cert: Annotated[str | None, _doc("PEM certificate chain; SIGHUP rereads.")] = None
    tls_key: Annotated[str | None, _doc("PEM file with its key; none: in tls_cert.")] = None
    tls_client_ca: Annotated[
        str | None, _doc("PEM file of the CA whose certificates clients must show; none: no need.")
    ] = None
    head_timeout_s: Annotated[Seconds, _doc("Longest time for a request's head.", gt=0)] = 30.0
    body_timeout_s: Annotated[Seconds, _doc("Longest time for a request's body.", gt=0)] = 120.0
    max_head_bytes: Annotated[int, _doc("Longest line of a request's head.", ge=1024)] = 16 * 2**10
    max_connections_per_client: Annotated[
        int, _doc("Most connections from one address; 0: no bound.", ge=0)
    ] = 0
    cors_origins: Annotated[
        tuple[str, ...], _doc("Origins whose pages may read replies; * for all.")
    ] = ()
    busy_poll: Annotated[
        bool,
        _doc("Never sleep between requests: takes a core per process, for a lower latency."),
    ] = False
    decision_headers: Annotated[
        bool, _doc("Whether replies name the replica, the match and the reason in headers.")
    ] = True


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
    forward_chat_ids: Annotated[
        bool,
        _doc("Send chats with their token ids as `input_ids`, which SGLang (0.5.13) reads."),
    ] = False
    fetch: Annotated[
        bool,
        _doc(
            "Take tokenizer and template of models without a directory from a replica that serves "
            "them (/model_files), in the background."
        ),
    ] = False
    fetch_dir: Annotated[
        str | None, _doc("Keeps what was fetched; none: warmgate/models in the user's cache.")
    ] = None
    fetch_max_bytes: Annotated[int, _doc("Bound of one model's fetched files.", ge=1)] = 128 * 2**20
    fetch_models: Annotated[int, _doc("So many models are fetched at most.", ge=1, le=64)] = 4
    memo_bytes: Annotated[int, _doc("Bound of remembered text and tokens, in bytes.", ge=0)] = (
        256 * 2**20
    )


class EventsSettings(Settings, frozen=True):
    """How the index learns what replicas hold."""

    bind: Annotated[
        str | None, _doc("ZeroMQ endpoint to bind, for engines that connect to the router.")
    ] = None
    replay_timeout_s: Annotated[Seconds, _doc("Longest wait for one replay.", gt=0)] = 10.0
    self_test: Annotated[
        bool, _doc("Probe each replica at the start and after restarts, as `check --live` does.")
    ] = False
    quiet_s: Annotated[
        Seconds, _doc("After so long without a frame, ask whether any was lost.", gt=0)
    ] = 2.0


class TenantsSettings(Settings, frozen=True):
    """Who may ask, and how much."""

    keys_file: Annotated[
        str | None,
        _doc("YAML file of tenants and their keys' hashes, reread when it changes; none: anybody."),
    ] = None
    default_output_tokens: Annotated[
        int, _doc("Tokens booked for a reply without a maximum, until its usage is known.", ge=0)
    ] = 256


class ForwardSettings(Settings, frozen=True):
    """Limits towards replicas."""

    connect_timeout_s: Annotated[Seconds, _doc("Longest time to connect.", gt=0)] = 2.0
    first_byte_timeout_s: Annotated[
        Seconds, _doc("Longest time to the first byte of a reply's body.", gt=0)
    ] = 600.0
    idle_timeout_s: Annotated[
        Seconds, _doc("Longest silence between two bytes of a reply.", gt=0)
    ] = 60.0
    max_tries: Annotated[int, _doc("Most replicas tried for one request.", ge=1)] = 3
    tls_ca: Annotated[
        str | None, _doc("PEM file of the CA of https replicas; none: the system's. SIGHUP adds.")
    ] = None
    tls_cert: Annotated[
        str | None, _doc("PEM file with our certificate and key for them; SIGHUP rereads.")
    ] = None
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
    silence_s: Annotated[
        Seconds,
        _doc("A replica with requests is probed at once if its events stop for so long.", gt=0),
    ] = 0.5
    breaker_failures: Annotated[
        int, _doc("Requests in a row that fail before the replica gets none.", ge=1)
    ] = 5
    breaker_open_s: Annotated[
        Seconds, _doc("So long; then one request tries. Doubled each time that fails.", gt=0)
    ] = 5.0


class LogSettings(Settings, frozen=True):
    """What is told: to stderr, and to a collector of traces."""

    level: Annotated[str, _doc("debug, info, warning or error.")] = "info"
    format: Annotated[
        Literal["text", "json"], _doc("text, for people; json: each line an object.")
    ] = "text"
    access: Annotated[bool, _doc("One line per request, its record as JSON.")] = False
    traces_to: Annotated[str | None, _doc("OTLP/HTTP URL of a collector; none: no traces.")] = None
    traces_share: Annotated[float, _doc("Of requests that come without a trace.", ge=0, le=1)] = 1.0


class RouterConfig(Settings, frozen=True):
    """All of it."""

    listen: ListenSettings = ListenSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    replicas: tuple[ReplicaSettings, ...] = ()
    routing: RoutingSettings = RoutingSettings()
    tokens: TokensSettings = TokensSettings()
    events: EventsSettings = EventsSettings()
    index: IndexSettings = IndexSettings()
    shared: SharedSettings = SharedSettings()
    tenants: TenantsSettings = TenantsSettings()
    forward: ForwardSettings = ForwardSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()
