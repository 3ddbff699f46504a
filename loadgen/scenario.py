"""YAML scenarios: every key is a flag's name, so a file says what a command line would.

```yaml
workload: multi-turn
request-rate: 4
slo: [p95_ttft_ms=250, error_share=0]
usage-per-chunk: true
```
Flags after `--scenario` win over the file; those that may be repeated add to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import yaml

from loadgen.options import UsageError

FLAG: Final = "--scenario"
SHIPPED: Final = "scenarios"


def expand(argv: Sequence[str]) -> list[str]:
    """The command line with `--scenario FILE` replaced by what the file says. UsageError."""
    found: list[str] = []
    words = iter(argv)
    for word in words:
        if word == FLAG:
            found += _flags(_file(next(words, "")))
        elif word.startswith(f"{FLAG}="):
            found += _flags(_file(word.partition("=")[2]))
        else:
            found.append(word)
    return found


def add_scenario_option(parser: argparse.ArgumentParser) -> None:
    """For the help text only: `expand` has taken it away before anything is parsed."""
    parser.add_argument(
        FLAG, metavar="FILE", help="YAML whose keys are flags; or the name of one that is shipped"
    )


def shipped() -> dict[str, str]:
    """Name → first comment line of each scenario that comes with the program."""
    folder = resources.files("loadgen").joinpath(SHIPPED)
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".yaml"): file.read_text("utf-8").split("\n")[0].lstrip("# ")
        for file in files
        if file.name.endswith(".yaml")
    }


def _file(name: str) -> tuple[str, str]:
    path = Path(name)
    if path.is_file():
        return name, path.read_text("utf-8")
    own = resources.files("loadgen").joinpath(SHIPPED, f"{name}.yaml")
    if not name or not own.is_file():
        raise UsageError(f"{FLAG} {name}: no such file, and none of {', '.join(shipped())}")
    return name, own.read_text("utf-8")


def _flags(file: tuple[str, str]) -> Iterator[str]:
    name, text = file
    try:
        settings = yaml.safe_load(text) or {}
    except yaml.YAMLError as exc:
        raise UsageError(f"{FLAG} {name}: {exc}") from exc
    if not isinstance(settings, dict):
        raise UsageError(f"{FLAG} {name}: not a list of keys and values")
    for key, value in settings.items():
        flag = "--" + str(key).replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            yield from _flag(flag, one)


def _flag(flag: str, value: object) -> Iterator[str]:
    if value is True:
        yield flag
    elif isinstance(value, dict):
        yield f"{flag}={json.dumps(value)}"
    elif value is not False and value is not None:
        yield f"{flag}={value}"
