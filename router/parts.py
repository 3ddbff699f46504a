"""Each part's share of the settings, in the part's own words."""

import asyncio
import os
import secrets
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from random import Random

import aiohttp
import zmq.asyncio

from router import shared_parts
from router.config import ConfigError
from router.events.keeper import Keeper, Watching
from router.events.seeds import gather_seeds
from router.events.silence import Silence
from router.events.sources import DialSources, choose_sources
from router.events.zmq_source import DialTimes
from router.index.arena import Allocate
from router.index.memory import MemoryIndex
from router.index.moved import Moved
from router.index.reservations import Reservations
from router.index.siblings import NoSiblings, Siblings
from router.index.tiers import TieredIndex
from router.metrics import Metrics
from router.proxy.forwarder import Forwarder
from router.proxy.reply import Limits
from router.replicas import Pool
from router.replicas.breaker import BreakerTimes
from router.replicas.health import Prober
from router.settings import (
    EventsSettings,
    ForwardSettings,
    HealthSettings,
    IndexSettings,
    LogSettings,
    RouterConfig,
    SharedSettings,
    TokensSettings,
)
from router.shared import (
    BadUrl,
    LoadBoard,
    MemoryStore,
    Peers,
    PeerTimes,
    RedisStore,
    SharedStore,
    connect,
)
from router.supervise import Supervisor
from router.tenants import (
    BadKeyFile,
    Gate,
    KeyedGate,
    KeyFile,
    Ledger,
    MemoryLedger,
    OpenGate,
)
from router.tokens import (
    BadTemplate,
    Fetcher,
    FetchLimits,
    JudgeLimits,
    Later,
    ModelFiles,
    NullTokenizer,
    RemoteLimits,
    RemoteTokenizer,
    Serving,
    Tokenizer,
    Tokenizers,
    UnusableModelDir,
    assemble,
    engine_flags,
    model_sources,
)
from router.tokens import Limits as TokenLimits
from router.tracing import NoTracer, Tracer


def breaker_times(health: HealthSettings) -> BreakerTimes:
    return BreakerTimes(health.breaker_failures, health.breaker_open_s)


def silence(
    health: HealthSettings, keeper: Watching, prober: Prober, in_flight: Callable[[str], int]
) -> Silence:
    """Brings probes forward when a replica's events stop."""
    return Silence(
        pool=prober.pool,
        keeper=keeper,
        in_flight=in_flight,
        doubt=prober.doubt,
        clock=time.monotonic,
        after_s=health.silence_s,
        most_s=health.interval_s,
    )


def tracer(settings: LogSettings, stack: AsyncExitStack) -> Tracer:
    """None without a collector; `stack` sends what is left at the end. ConfigError."""
    if settings.traces_to is None:
        return NoTracer()
    try:  # an extra
        from router.otel import OtelTracer
    except ModuleNotFoundError as exc:
        raise ConfigError("log.traces_to needs: pip install warmgate[otel]") from exc
    built = OtelTracer(settings.traces_to, settings.traces_share, version("warmgate"))
    stack.push_async_callback(asyncio.to_thread, built.close)
    return built


def dial_times(events: EventsSettings) -> DialTimes:
    return DialTimes(replay_s=events.replay_timeout_s, quiet_s=events.quiet_s)


def reply_limits(forward: ForwardSettings) -> Limits:
    return Limits(
        connect_timeout_s=forward.connect_timeout_s,
        first_byte_timeout_s=forward.first_byte_timeout_s,
        idle_timeout_s=forward.idle_timeout_s,
        high_water_bytes=forward.buffer_bytes,
        max_tries=forward.max_tries,
    )


def index(
    memory: IndexSettings, clock: Callable[[], float], allocate: Allocate | None = None
) -> TieredIndex:
    """An empty index."""
    return TieredIndex(
        clock=clock,
        max_bytes=memory.max_bytes,
        load_ms_per_ktoken=memory.tiers,
        allocate=allocate,
    )


def forwarder(config: RouterConfig, tls: ssl.SSLContext, stack: AsyncExitStack) -> Forwarder:
    """With keys of our own, clients' keys are ours to check and no business of the engines."""
    keeps_keys = config.tenants.keys_file is None
    limits = reply_limits(config.forward)
    forwarder = Forwarder(limits, time.monotonic, tls, keeps_keys=keeps_keys)
    stack.push_async_callback(forwarder.aclose)
    return forwarder


def peers(
    settings: SharedSettings, reservations: Reservations, clock: Callable[[], float]
) -> Peers:
    """This router among those that share `settings.url`; without one, alone. ConfigError."""
    times = PeerTimes(
        *(settings.interval_s, settings.busy_interval_s, settings.busy_for_s),
        *(settings.ttl_s, settings.news_interval_s),
    )
    store: SharedStore = MemoryStore(clock)
    if settings.url is not None:
        deadline_s = settings.deadline_ms / 1e3
        try:
            store = RedisStore(connect(settings.url, deadline_s), settings.prefix, deadline_s)
        except BadUrl as exc:
            raise ConfigError(f"shared.url: {exc}") from exc
    group = settings.board or ""
    is_shared = settings.url is not None
    moved = Moved(settings.sessions_ttl_s, settings.max_sessions)
    return Peers(secrets.token_hex(8), store, reservations, clock, times, is_shared, group, moved)


def siblings(
    settings: SharedSettings, clock: Callable[[], float], stack: AsyncExitStack
) -> Siblings:
    """The other processes of this host. ConfigError."""
    if settings.board is None:
        return NoSiblings()
    try:
        soon = asyncio.get_running_loop().call_soon
        board = LoadBoard(Path(settings.board), settings.slot, settings.processes, clock, soon)
    except OSError as exc:
        raise ConfigError(f"shared.board: {exc}") from exc
    stack.callback(board.close)
    board.prepare()
    return board


def gate(
    config: RouterConfig,
    peers: Peers,
    supervisor: Supervisor,
    metrics: Metrics,
) -> Gate:
    """Open without a file of keys; its budgets are shared with whom load is. ConfigError."""
    settings, shared = config.tenants, config.shared
    if settings.keys_file is None:
        return OpenGate()
    try:
        keys = KeyFile(Path(settings.keys_file))
    except BadKeyFile as exc:
        raise ConfigError(f"tenants.keys_file: {exc}") from exc
    supervisor.run("keys", keys.watch)
    ledger: Ledger = MemoryLedger(time.time)
    if isinstance(peers.store, RedisStore):
        ledger = shared_parts.ledger(shared, peers, supervisor)
    return KeyedGate(
        keys, ledger, settings.default_output_tokens, metrics.count_refusal, metrics.count_use
    )


def tokens(
    settings: TokensSettings, session: aiohttp.ClientSession, pool: Pool, rng: Random
) -> Tokenizers:
    """Local where a directory is given, else a replica's; the local one's failures go there too."""
    share = settings.memo_bytes // 2 if settings.remote else settings.memo_bytes
    limits = TokenLimits(deadline_s=settings.deadline_ms / 1e3, memo_bytes=share)
    engine: Tokenizer = NullTokenizer()
    if settings.remote:
        engine = RemoteTokenizer(
            session,
            lambda model: [member.replica.url for member in pool.available(model)],
            rng=rng,
            limits=RemoteLimits(limits.deadline_s, memo_bytes=share),
        )
    try:
        sources = model_sources(settings.models, settings.default, settings.engines)
        return assemble(
            sources,
            engine,
            limits=limits,
            judge=JudgeLimits(share=settings.judge_share),
            rng=rng,
            later=Later(
                settings.fetch_models if settings.fetch else 0, engine_flags(settings.engines)
            ),
        )
    except (UnusableModelDir, BadTemplate, OSError) as exc:
        raise ConfigError(f"tokens: {exc}") from exc


def fetcher(settings: TokensSettings, prober: Prober, tokens: Tokenizers) -> Fetcher:
    """Fetches the files of models that no directory is named for."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(settings.fetch_dir) if settings.fetch_dir else cache / "warmgate" / "models"
    limits = FetchLimits(settings.fetch_max_bytes)

    def serving() -> list[Serving]:
        up = [member for member in prober.pool if member.is_healthy and member.base_model]
        return [Serving(one.replica.url, one.base_model, tuple(one.models)) for one in up]

    files = ModelFiles(prober.session, folder, limits)
    return Fetcher(files, serving, tokens.knows, tokens.add, settings.fetch_models, time.monotonic)


async def keeper(
    config: RouterConfig, index: MemoryIndex, dial: DialSources, supervisor: Supervisor
) -> Keeper:
    memory, bind = config.index, config.events.bind
    sources = choose_sources(bind, dial, lambda work: supervisor.run("bind", work))
    wait_s = memory.restore_timeout_s / 2
    where = (memory.siblings, memory.snapshot_file, wait_s)
    seeds = await gather_seeds(dial.session, *where, lambda: shared_parts.read_index(config.shared))
    keeper = Keeper(index, sources, dial.shape_of, seeds)
    shared_parts.keep_index(config.shared, keeper, supervisor)
    return keeper


def zmq_context(stack: AsyncExitStack) -> zmq.asyncio.Context:
    context = zmq.asyncio.Context()
    stack.callback(context.destroy, linger=0)
    return context


def session(tls: ssl.SSLContext, *, once: bool) -> aiohttp.ClientSession:
    """`once`: each connection carries one request."""
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, force_close=once)
    return aiohttp.ClientSession(connector=connector)
