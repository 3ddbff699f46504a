"""A model's tokenizer and template, fetched from a replica that serves them and kept on disk.

`GET /model_files` lists names, sizes and SHA-256 digests, `GET /model_files/NAME` gives one. Files
are taken as far as the replica's answers are: the judge compares what they lead to with the engine.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

KNOWN: Final = frozenset(
    "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja config.json"
    " generation_config.json tekken.json".split()
)
"""Names that may be fetched; no other name ever becomes a path here."""

VOCABULARIES: Final = frozenset({"tokenizer.json", "tekken.json"})
MAX_LIST_BYTES: Final = 64 * 1024


class NoModelFiles(Exception):
    """The replica serves none, or not what it listed; the message says why."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`max_bytes`: of one model's files. `timeout_s`: for all of them. `kept`: folders on disk."""

    max_bytes: int = 128 * 1024 * 1024
    timeout_s: float = 60.0
    kept: int = 8


class _File(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class _Listing(msgspec.Struct):
    files: list[_File]


class ModelFiles:
    """Fetches into `folder`: a folder for each set of files, named by their digests."""

    def __init__(self, session: aiohttp.ClientSession, folder: Path, limits: FetchLimits) -> None:
        self._session = session
        self._folder = folder
        self._limits = limits

    async def fetch(self, url: str) -> Path:
        """A directory with the files that the replica at `url` serves. NoModelFiles, OSError."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                files = await self._list(url)
                directory = self._folder / _name(files)
                if not await asyncio.to_thread(_is_whole, directory, files):
                    await self._fill(url, files, directory)
                await asyncio.to_thread(self._tidy, directory)
                return directory
        except TimeoutError as exc:
            raise NoModelFiles(f"{url}: too slow") from exc
        except aiohttp.ClientError as exc:
            raise NoModelFiles(f"{url}: {exc!r}") from exc

    async def _list(self, url: str) -> list[_File]:
        answer = await self._get(f"{url}/model_files", MAX_LIST_BYTES)
        try:
            files = msgspec.json.decode(answer, type=_Listing).files
        except msgspec.MsgspecError as exc:
            raise NoModelFiles(f"{url}: {exc}") from exc
        names = {file.name for file in files}
        if len(names) != len(files) or not names <= KNOWN or names.isdisjoint(VOCABULARIES):
            raise NoModelFiles(f"{url} lists {sorted(names)}")
        if any(file.bytes < 0 for file in files):
            raise NoModelFiles(f"{url} lists a file of less than no bytes")
        if sum(file.bytes for file in files) > self._limits.max_bytes:
            raise NoModelFiles(f"{url}: its files are above {self._limits.max_bytes} bytes")
        return files

    async def _fill(self, url: str, files: Sequence[_File], directory: Path) -> None:
        """Nothing is at its place before all of it is there and is what was listed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".new-") as made:
            fresh = Path(made) / "files"
            fresh.mkdir()
            for file in files:
                content = await self._get(f"{url}/model_files/{file.name}", file.bytes)
                await asyncio.to_thread(_write, fresh / file.name, content, file.sha256)
            await asyncio.to_thread(_put, fresh, directory)

    async def _get(self, url: str, max_bytes: int) -> bytes:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise NoModelFiles(f"{url}: status {response.status}")
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > max_bytes:
                    raise NoModelFiles(f"{url}: more than {max_bytes} bytes")
        return bytes(answer)

    def _tidy(self, used: Path) -> None:
        """Keep those that were used last."""
        used.touch()
        found = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[self._limits.kept :]:
            shutil.rmtree(path, ignore_errors=True)


def _name(files: Sequence[_File]) -> str:
    listed = sorted((file.name, file.sha256) for file in files)
    return sha256(msgspec.json.encode(listed)).hexdigest()[:32]


def _is_whole(directory: Path, files: Sequence[_File]) -> bool:
    try:
        found = {file.name: (directory / file.name).read_bytes() for file in files}
    except OSError:
        return False
    return all(sha256(found[file.name]).hexdigest() == file.sha256 for file in files)


def _put(fresh: Path, directory: Path) -> None:
    if directory.exists():  # what is there is not whole
        shutil.rmtree(directory)
    fresh.rename(directory)


def _write(path: Path, content: bytes, digest: str) -> None:
    if sha256(content).hexdigest() != digest:
        raise NoModelFiles(f"{path.name} is not what was listed")
    path.write_bytes(content)
