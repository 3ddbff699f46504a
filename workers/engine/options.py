"""Every setting of an engine, with vLLM's names and defaults where vLLM has them."""

from dataclasses import dataclass

from router.blocks import Form
from workers.engine.faults import HEALTHY, Faults
from workers.engine.profile import Profile, load_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Ports of 0 are chosen freely. Sizes of None come from the profile."""

    host: str = "127.0.0.1"
    port: int = 0
    events_port: int = 0
    """Rank r publishes at this port + r."""
    replay_port: int = 0
    topic: str = ""
    buffer_steps: int = 10_000
    event_form: Form = Form.MAP
    model_names: tuple[str, ...] = ("warmgate-tiny",)
    """Names that requests may use; the first one is in replies' model list as `root`."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters, served as models of these names."""
    profile: str = "laptop"
    speed_up: float = 1.0
    block_size: int = 16
    num_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    max_num_queued_reqs: int | None = None
    """More waiting requests than this get 503."""
    data_parallel_size: int = 1
    answer_tokens: tuple[int, int] = (64, 448)
    """Shortest and longest answer before the model ends it by itself; (0, 0): never."""
    shutdown_timeout_s: float = 30.0
    faults: Faults = HEALTHY
    seed: int | None = None
    """Of the engine's block hashes and of the faults' dice; None is another one each time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """An engine's limits, settled. `max_model_len` in tokens, `num_blocks` per rank."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size


def settle(options: EngineOptions) -> tuple[Profile, Sizes]:
    """Read the profile and work out the sizes. ValueError if they contradict each other."""
    profile = load_profile(options.profile)
    if options.block_size < 1 or options.speed_up <= 0 or options.data_parallel_size < 1:
        raise ValueError("block size, speed-up and data parallel size must be positive")
    num_blocks = options.num_blocks or profile.kv_tokens // options.block_size
    room = (num_blocks - 1) * options.block_size
    max_model_len = options.max_model_len or min(profile.max_model_len, room)
    if max_model_len > room or max_model_len < 2:
        raise ValueError(
            f"max_model_len={max_model_len} needs a cache of at least as many tokens; "
            f"{num_blocks} blocks of {options.block_size} leave {room}"
        )
    return profile, Sizes(
        block_size=options.block_size,
        num_blocks=num_blocks,
        max_num_seqs=options.max_num_seqs or profile.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or profile.max_num_batched_tokens,
        max_model_len=max_model_len,
    )
