"""Key files, and a clock of budgets that tests share with Redis."""

import asyncio
import time
from pathlib import Path
from typing import Any

import yaml

from router.tenants import hash_key


def wall() -> float:
    return time.time()


async def away_from_the_minute(needed_s: float) -> None:
    """Wait for the next minute if this one ends too soon: Redis' clock can't be set."""
    left_s = 60 - wall() % 60
    if left_s < needed_s:
        await asyncio.sleep(left_s + 0.05)


def key_file(path: Path, **tenants: dict[str, Any]) -> Path:
    """A file in which tenant `a` has the key `key-of-a`."""
    rows = [
        {"id": name, "keys": [hash_key(f"key-of-{name}")], **fields}
        for name, fields in tenants.items()
    ]
    path.write_text(yaml.safe_dump({"tenants": rows}), "utf-8")
    return path


def as_tenant(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-of-{name}"}
