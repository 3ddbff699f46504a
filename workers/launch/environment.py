"""The environment that vLLM starts in: on a machine without an accelerator it needs help."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ACCELERATORS: Final = (
    "/dev/nvidiactl",
    "/dev/kfd",
    "/dev/accel",
    "/dev/davinci0",
    "/dev/dri/renderD128",
)
"""Device files of NVIDIA, AMD, Gaudi and TPU, Ascend, Intel."""


def is_cpu_only(exists: Callable[[str], bool]) -> bool:
    """No accelerator's device file is there, so vLLM can run on the CPU alone."""
    return not any(exists(path) for path in ACCELERATORS)


def cpu_environment(
    environ: Mapping[str, str], model: str, cores: str | None, kv_gib: int
) -> dict[str, str]:
    """`environ` with vLLM's CPU settings added; what the user has set stays.

    `cores`: which ones compute, such as `0` or `0-3`. Left open, vLLM's own choice puts every
    replica of a machine on the same ones.
    """
    recipe = {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib)}
    if cores is not None:
        recipe["VLLM_CPU_OMP_THREADS_BIND"] = cores
    if Path(model).is_dir():
        # All that it needs is here; without this a machine without network waits for time-outs.
        recipe["HF_HUB_OFFLINE"] = "1"
    return recipe | dict(environ)
