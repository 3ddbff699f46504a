"""`warmgate explain`: ask a running router where a request would go, and show why."""

import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

COLUMNS = (
    ("replica", "id"),
    ("trust", "trust"),
    ("matched", "matched_blocks"),
    ("of blocks", "prompt_blocks"),
    ("expected tokens", "expected_tokens"),
    ("distance ms", "distance_ms"),
    ("load ms", "load_ms"),
    ("wait ms", "wait_ms"),
    ("memory wait ms", "memory_wait_ms"),
    ("prefill ms", "prefill_ms"),
    ("TTFT ms", "ttft_ms"),
    ("cost ms", "cost_ms"),
    ("running", "running"),
)


class Unexplained(Exception):
    """The router gave no answer; says what it said instead."""


def ask(url: str, path: str, body: bytes, session: str | None) -> dict[str, Any]:
    """One POST to the router's `/debug/explain`. Unexplained."""
    where = f"{url.rstrip('/')}/debug/explain?{urllib.parse.urlencode({'path': path})}"
    headers = {"content-type": "application/json"}
    if session is not None:
        headers["x-session-id"] = session
    request = urllib.request.Request(where, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30.0) as reply:
            return msgspec.json.decode(reply.read(), type=dict[str, Any])
    except urllib.error.HTTPError as exc:
        with exc:
            raise Unexplained(f"{exc.code}: {exc.read().decode('utf-8', 'replace')}") from exc
    except (OSError, msgspec.DecodeError) as exc:
        raise Unexplained(f"{url}: {exc}") from exc


def show(answer: dict[str, Any], console: Console) -> None:
    """First choice first."""
    failure = answer["tokenize_failure"]
    console.print(
        f"{answer['policy']}: {answer['reason']}; {answer['prompt_tokens']} prompt tokens"
        + (f"; not tokenized: {failure}" if failure else ""),
        highlight=False,
    )
    table = Table()
    for title, _ in COLUMNS:
        table.add_column(title, justify="left" if title in ("replica", "trust") else "right")
    for row in answer["replicas"]:
        table.add_row(*(_text(row[key]) for _, key in COLUMNS))
    console.print(table)


def _text(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
