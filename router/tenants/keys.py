"""API keys: only their hashes are kept, in a file that is read again when it changes."""

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import yaml

from router.tenants.tenant import Tenant

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0
_PREFIX: Final = "sha256:"


class BadKeyFile(ValueError):
    """The file can't be used; the message says why, and names no key."""


class KeyRing:
    """Finds the tenant of a key. Keys are random, so one round of SHA-256 hides them well."""

    def __init__(self, tenants: Sequence[Tenant] = ()) -> None:
        self._by_start: dict[str, list[tuple[str, Tenant]]] = defaultdict(list)
        for tenant in tenants:
            for hashed in tenant.keys:
                self._by_start[_start(hashed)].append((hashed, tenant))

    def find(self, key: str) -> Tenant | None:
        """Its tenant, disabled or not. The comparison takes the same time wherever it fails."""
        hashed = hash_key(key)
        found = None
        for known, tenant in self._by_start.get(_start(hashed), ()):
            if hmac.compare_digest(known, hashed):
                found = tenant
        return found


def new_key() -> str:
    """A key for a client: 256 random bits."""
    return "wg-" + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """What the key file holds of a key."""
    return _PREFIX + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: tuple[Tenant, ...] = ()


def read_keys(path: Path) -> KeyRing:
    """`tenants:` and a list of them, in YAML. BadKeyFile."""
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
        tenants = msgspec.convert(tree or {}, _File).tenants
    except OSError as exc:
        raise BadKeyFile(f"cannot read {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise BadKeyFile(f"{path} is no YAML") from exc
    except msgspec.ValidationError as exc:
        raise BadKeyFile(f"{path}: {exc}") from exc
    for name, values in (
        ("tenant", [tenant.id for tenant in tenants]),
        ("key", [key for tenant in tenants for key in tenant.keys]),
    ):
        if len(set(values)) != len(values):
            raise BadKeyFile(f"{path}: a {name} is there twice")
    return KeyRing(tenants)


class KeyFile:
    """The keys of a file, as it was last when it could be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self.ring = read_keys(path)

    async def watch(self) -> None:
        """Read it again whenever it has changed."""
        while True:
            await asyncio.sleep(WATCH_S)
            self.refresh()

    def refresh(self) -> None:
        """A file that can't be used changes nothing but the log."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.ring = read_keys(self._path)
        except BadKeyFile as exc:
            log.error("keys stay as they were: %s", exc)
        else:
            log.info("keys were read again")


def _start(hashed: str) -> str:
    return hashed[: len(_PREFIX) + 16]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
