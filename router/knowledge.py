"""What a process knows of replicas' caches: by itself, or through the central index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from router import parts
from router.central import (
    CAN_SHARE,
    Address,
    AskLimits,
    BadAddress,
    CentralIndex,
    parse_address,
)
from router.config import ConfigError
from router.events.keeper import Keeper, Watching
from router.events.sources import DialSources
from router.events.upkeep import Upkeep
from router.index.tiers import TieredIndex
from router.index_settings import IndexSettings
from router.metrics import Metrics
from router.parity import Parity, SelfTest
from router.replicas import Member, Pool
from router.settings import RouterConfig
from router.source import OwnIndex, Source
from router.supervise import Supervisor
from router.tokens import Tokenizers

NOWHERE = "index.address: missing; with index.mode shared a router must know where to ask"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """`tasks`: what it needs for each replica. `suspect`: tell it that one can't be reached."""

    index: TieredIndex | CentralIndex
    source: Source
    keeper: Watching
    tasks: Mapping[str, Callable[[Member], Awaitable[None]]]
    suspect: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Means:
    """What following replicas takes."""

    pool: Pool
    dial: DialSources
    tokens: Tokenizers
    supervisor: Supervisor
    metrics: Metrics
    rng: Random


async def gather_own(
    config: RouterConfig, index: TieredIndex, means: Means, stack: AsyncExitStack
) -> tuple[Knowledge, Keeper]:
    """Follow the replicas' events here. ConfigError, OSError."""
    keeper = await parts.keeper(config, index, means.dial, means.supervisor)
    told = config.index
    upkeep = Upkeep(index, keeper, told.snapshot_file, told.snapshot_interval_s)
    upkeep.start(means.supervisor.run, stack.push_async_callback)
    parity = Parity(means.dial.session, means.dial, means.tokens.first_choice, means.rng)
    test = SelfTest(means.pool, keeper, parity, config.events.self_test)
    means.supervisor.run("self-test", test.run)
    means.pool.on_health.append(keeper.health_changed)
    means.metrics.watch_index(lambda: index.bytes, index.max_bytes)
    tasks = {"events": keeper.keep}
    return Knowledge(index, OwnIndex(index), keeper, tasks, lambda replica_id: None), keeper


def gather_from_central(settings: IndexSettings, means: Means) -> Knowledge:
    """Ask the central index. ConfigError."""
    limits = AskLimits(settings.deadline_ms / 1e3, settings.max_questions)
    central = CentralIndex(address_of(settings), token_of(settings), limits)
    means.supervisor.run("central", central.run)
    means.metrics.watch_central(lambda: central.outcomes, lambda: central.is_connected)
    return Knowledge(central, central, central, {}, central.suspect)


def is_central(settings: IndexSettings, processes: int = 1) -> bool:
    """Is one central index to be asked, or has each of so many processes its own?

    Unless it is said: one, where an address is given, or where processes can read it in place.
    """
    if settings.mode != "auto":
        return settings.mode == "shared"
    can_read = CAN_SHARE and not settings.tiers
    return settings.address is not None or (processes > 1 and can_read)


def address_of(settings: IndexSettings) -> Address:
    """Where the central index is. ConfigError."""
    if settings.address is None:
        raise ConfigError(NOWHERE)
    try:
        return parse_address(settings.address)
    except BadAddress as exc:
        raise ConfigError(f"index.address: {exc}") from exc


def token_of(settings: IndexSettings) -> bytes:
    """The secret; empty without a file. ConfigError: it can't be read, or is empty."""
    if settings.token_file is None:
        return b""
    try:
        token = Path(settings.token_file).read_bytes().strip()
    except OSError as exc:
        raise ConfigError(f"index.token_file: {exc}") from exc
    if not token:
        raise ConfigError(f"index.token_file: {settings.token_file} is empty")
    return token
