"""A chart as Helm renders it. `HELM` in the environment names the binary, else PATH does."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "k8s" / "warmgate"
EXAMPLES = sorted((ROOT / "k8s" / "examples").glob("*.yaml"))


def helm_binary() -> str | None:
    return os.environ.get("HELM") or shutil.which("helm")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    binary = helm_binary()
    assert binary is not None
    return subprocess.run(
        [binary, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@lru_cache(maxsize=64)
def render(*flags: str) -> Objects:
    """Rendered as the release `demo` in the namespace `llm`. AssertionError with Helm's words."""
    done = helm("template", "demo", str(CHART), "-n", "llm", *flags)
    assert done.returncode == 0, done.stderr
    return Objects([thing for thing in yaml.safe_load_all(done.stdout) if thing])


def flags(*pairs: str) -> list[str]:
    """`--set` for each."""
    return [part for pair in pairs for part in ("--set", pair)]


class Objects(list[dict[str, Any]]):
    def of(self, kind: str, name: str | None = None) -> list[dict[str, Any]]:
        return [t for t in self if t["kind"] == kind and name in (None, t["metadata"]["name"])]

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        (found,) = self.of(kind, name)
        return found

    def pods(self) -> list[dict[str, Any]]:
        """The spec of every pod that these objects start."""
        specs = [t["spec"]["template"]["spec"] for t in self.workloads()]
        return specs + [t["spec"] for t in self.of("Pod")]

    def workloads(self) -> list[dict[str, Any]]:
        return self.of("Deployment") + self.of("StatefulSet")

    def config(self) -> dict[str, Any]:
        """The router's settings."""
        tree = yaml.safe_load(self.one("ConfigMap", "demo-warmgate")["data"]["router.yaml"])
        assert isinstance(tree, dict)
        return tree
