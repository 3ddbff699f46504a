"""Rules and dashboards as they are in the tree, and a real Prometheus if this machine has one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "k8s" / "warmgate" / "files" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "k8s" / "warmgate" / "files" / "dashboards").glob("*.json"))


def binary(name: str) -> str | None:
    """`prometheus` or `promtool`: PROMETHEUS_BIN names their folder, else PATH has them."""
    return shutil.which(name, path=os.environ.get("PROMETHEUS_BIN") or None)


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def queries() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, expression) of every query, with Grafana's variables filled in."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", "30s").replace("$model", ".*")
                yield path.stem, panel["title"], expr


def series_in(text: str) -> set[tuple[str, frozenset[str]]]:
    """Each series of an exposition: its name and the names of its labels."""
    return {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series_of_rules_test() -> set[tuple[str, frozenset[str]]]:
    """The same of what the tests of the rules feed them, but for labels that scraping adds."""
    tests = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules_test.yaml").read_text())
    found = set()
    for row in (row for test in tests["tests"] for row in test["input_series"]):
        name, _, labels = row["series"].partition("{")
        found.add((name, frozenset(re.findall(r"(\w+)=", labels)) - {"job", "instance"}))
    return found


def names_in(expr: str) -> set[str]:
    """Metrics that an expression names; a histogram's series by its own name."""
    found = set(re.findall(r"\bwarmgate_\w+", expr))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


@dataclass(slots=True)
class Prometheus:
    url: str
    session: aiohttp.ClientSession

    async def query(self, expr: str) -> list[Any]:
        async with self.session.get(self.url + "/api/v1/query", params={"query": expr}) as reply:
            answer = await reply.json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    async def firing(self) -> set[str]:
        """The names of alerts that fire now."""
        rows = await self.query('ALERTS{alertstate="firing"}')
        return {row["metric"]["alertname"] for row in rows}


def hurried_rules() -> str:
    """Our rules at another pace: a minute of a range is 2 s, a minute of `for` is 0.2 s."""
    text = re.sub(r"\[(\d+)m\]", lambda found: f"[{2 * int(found[1])}s]", RULES.read_text())
    return re.sub(r"for: (\d+)m", lambda found: f"for: {200 * int(found[1])}ms", text)


@asynccontextmanager
async def scraping(
    target: str, directory: Path, rules_file: Path = RULES
) -> AsyncIterator[Prometheus]:
    """A Prometheus that reads `target` (host:port) each half second, with our rules."""
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(rules_file)],
        "scrape_configs": [{"job_name": "warmgate", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        str(binary("prometheus")), f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            built = Prometheus(f"http://127.0.0.1:{port}", session)

            async def is_up() -> bool:
                try:
                    return bool(await built.query("up == 1"))
                except (aiohttp.ClientError, AssertionError):
                    return False

            await until(is_up, within_s=30)
            yield built
    finally:
        process.terminate()
        await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
