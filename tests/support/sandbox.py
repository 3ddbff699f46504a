"""One container as a process: a root of its own, a network of its own, a user without rights.

Needs root, and best a network namespace around all of it (`make test-kubernetes`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

BRIDGE: Final = "warmgate0"
HOST: Final = "10.244.0.1"
"""The host's address on the bridge between pods."""

_ENTER: Final = """
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$IMAGE,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
mount -t proc proc "$WORK/root/proc"
mount --rbind /dev "$WORK/root/dev"
{binds}
mount -o remount,{mode} "$WORK/root"
exec chroot "$WORK/root" setpriv --reuid={uid} --regid={gid} --clear-groups \\
    --bounding-set=-all --inh-caps=-all --no-new-privs env -i {env} {command}
"""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


def make_bridge() -> None:
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{HOST}/16", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


@dataclass(frozen=True, slots=True)
class Image:
    """A folder with a root, and what the image says of itself."""

    root: Path
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()

    @classmethod
    def of(cls, folder: Path) -> Image:
        """As `make build-image` leaves it."""
        told = json.loads((folder / "image.json").read_text())
        env = dict(pair.split("=", 1) for pair in told["Env"])
        return cls(folder / "rootfs", env, [*told["Entrypoint"], *told["Cmd"]])


@dataclass(slots=True)
class Sandbox:
    """`mounts`: paths of the container → folders and files that it sees there."""

    number: int
    folder: Path
    image: Image
    container: Mapping[str, Any]
    security: Mapping[str, Any]
    mounts: Mapping[str, Path]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    _is_closed: bool = False
    _closing: Lock = field(default_factory=Lock)

    @property
    def address(self) -> str:
        return f"10.244.{self.number // 250}.{self.number % 250 + 2}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def open(self) -> None:
        """Its network and its folders."""
        name, cable = self._netns, f"wg{self.number}"
        ip("netns", "add", name)
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", cable, "master", BRIDGE, "up")
        ip("-n", name, "addr", "add", f"{self.address}/16", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "route", "add", "default", "via", HOST)
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir(parents=True)
        for path, source in self.mounts.items():
            place = self.folder / "upper" / path.lstrip("/")
            (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
            if not source.is_dir():
                place.touch()

    def start(self) -> None:
        """Run the container's command. A second call starts it anew."""
        command = [*self.container.get("command", self.image.entrypoint)]
        env = {**self.image.env, **self.env}
        own = self.container.get("securityContext", {})
        script = _ENTER.format(
            binds="\n".join(
                f'mount --bind {shlex.quote(str(source))} "$WORK/root{path}"'
                for path, source in self.mounts.items()
            ),
            mode="ro" if own.get("readOnlyRootFilesystem") else "rw",
            uid=self.security["runAsUser"],
            gid=self.security["runAsGroup"],
            env=" ".join(shlex.quote(f"{name}={value}") for name, value in env.items()),
            command=shlex.join([*command, *self.container.get("args", ())]),
        )
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self._netns, "unshare", "--mount", "sh", "-euc", script],
                env={
                    "PATH": os.environ["PATH"], "IMAGE": str(self.image.root),
                    "WORK": str(self.folder),
                },
                stdout=out, stderr=out,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, within_s: float) -> None:
        """Until its process has ended. subprocess.TimeoutExpired."""
        if self.process is not None:
            self.process.wait(within_s)

    def close(self) -> None:
        """A second call, from whichever thread, waits for the first."""
        with self._closing:
            if self._is_closed:
                return
            self.signal(signal.SIGKILL)
            if self.process is not None:
                self.process.wait()
            ip("netns", "del", self._netns)
            shutil.rmtree(self.folder / "upper", ignore_errors=True)
            self._is_closed = True

    @property
    def _netns(self) -> str:
        return f"warmgate-{os.getpid()}-{self.number}"
