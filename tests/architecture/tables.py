"""Tables in the docs that are made from the code. `make docs` writes them; a test compares."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric

from loadgen.cli import make_parser as load_parser
from router import cli as router_cli
from router import config, errors
from router.collectors import ReplicaSample, ShadowSample, SharedSample, TokenizerSample
from router.metrics import Metrics
from workers.cli import make_parser as worker_parser

ROOT = Path(__file__).parents[2]
os.environ["COLUMNS"] = "100"


def settings_table() -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    rows += [f"| `{name}` | `{default}` | {text} |" for name, default, text in config.describe()]
    return "\n".join(rows)


def metrics_table() -> str:
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{_exposed(family)}` | {family.type} | {_labels(family)} | {family.documentation} |"
        for family in sorted(_families(), key=lambda f: f.name)
    ]
    return "\n".join(rows)


def errors_table() -> str:
    rows = ["| status | code | when |", "|---|---|---|"]
    kinds = errors.RouterError.__subclasses__()
    rows += [
        f"| {kind.status} | `{kind.code}` | {(kind.__doc__ or '').splitlines()[0]} |"
        for kind in sorted(kinds, key=lambda k: (k.status, k.code))
    ]
    return "\n".join(rows)


def cli_help(parser: argparse.ArgumentParser) -> str:
    """Help of every command of a program, as its users see it."""
    texts = [parser.format_help()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts += [command.format_help() for command in action.choices.values()]
    return "```text\n" + "\n".join(text.rstrip() + "\n" for text in texts) + "```"


def router_help() -> str:
    return cli_help(router_cli.make_parser())


def worker_help() -> str:
    return cli_help(worker_parser())


def load_help() -> str:
    return cli_help(load_parser())


TABLES = {
    "router/README.md": {
        "settings": settings_table,
        "metrics": metrics_table,
        "errors": errors_table,
        "cli": router_help,
    },
    "workers/README.md": {"cli": worker_help},
    "loadgen/README.md": {"cli": load_help},
}


def rendered(path: str) -> tuple[str, str]:
    """A document as it is, and as it should be."""
    text = wanted = (ROOT / path).read_text("utf-8")
    for name, make in TABLES[path].items():
        begin, end = f"<!-- {name}: made by `make docs` -->", f"<!-- {name} end -->"
        if begin not in wanted or end not in wanted:
            raise ValueError(f"{path} has no place for {name}: {begin} … {end}")
        before, rest = wanted.split(begin, 1)
        wanted = f"{before}{begin}\n{make()}\n{end}{rest.split(end, 1)[1]}"
    return text, wanted


def main() -> None:
    for path in TABLES:
        (ROOT / path).write_text(rendered(path)[1], "utf-8")


def _families() -> Iterator[Metric]:
    sample = ReplicaSample("r1", True, False, 0, 0, 0, "exact", "", 0, 0, 0)
    tokenizer = TokenizerSample("m", True, {"equal": 1}, 0, 0, 0, 0)
    shared = SharedSample("ok", 1, {"down": 0}, 0, {"here": 0})
    shadow = ShadowSample("lmetric", 0, 0, 0, 0, [("+Inf", 0)], 0.0)
    metrics = Metrics(lambda: [sample], lambda: [tokenizer], lambda: [shared], lambda: [shadow])
    metrics.watch_index(lambda: 0, 1)
    metrics.watch_queue(lambda: 0)
    metrics.watch_central(lambda: {"in_time": 0}, lambda: True)
    metrics.watch_desk(lambda: 0, lambda: 0)
    metrics.watch_warm_up()
    yield from metrics.registry.collect()


def _exposed(family: Metric) -> str:
    return family.name + "_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    names = getattr(family, "_labelnames", None) or (
        sorted(family.samples[0].labels) if family.samples else ()
    )
    return ", ".join(names)


if __name__ == "__main__":
    main()
