"""Where compiled functions are kept: numba's folders, but one that can only be read will do.

numba takes a folder only if it can write to it, so what an image brings along would be of no use
to a user who must not write there. And it looks at a function's own file alone to see whether what
it kept is still true; here all that are compiled of its package count.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import config
from numba.core.caching import FunctionCache

from router.compiled import KEPT_WITH


class Cache(FunctionCache):
    """What `njit(cache=True)` uses, but for one thing: numba's own first loads all that it knows of
    numpy and more, some 0.3 s of CPU, which only compiling needs."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was kept of this signature; None: nothing. Who compiles loads the rest then."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


class CacheFolder:
    """What numba calls a cache locator, for one function."""

    def __init__(self, folder: Path, source: Path, line: int) -> None:
        self._folder, self._source, self._line = folder, source, line

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> CacheFolder | None:
        """The first folder that can be written to, or that has this function; None: there is
        none."""
        path = Path(source)
        beside = hashlib.sha1(str(path.parent).encode(), usedforsecurity=False).hexdigest()
        own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folders = [path.parent / "__pycache__"]
        if os.path.isabs(own):
            folders.append(Path(own, "numba", beside))
        if wanted := getattr(config, "CACHE_DIR", ""):
            folders.insert(0, Path(wanted) / beside)
        for folder in folders:
            found = cls(folder, path, function.__code__.co_firstlineno)
            if any(folder.glob(f"{path.stem}.{function.__name__}-*.nbi")) or found.is_writable():
                return found
        return None

    def is_writable(self) -> bool:
        try:
            self.ensure_cache_path()
        except OSError:
            return False
        return True

    def ensure_cache_path(self) -> None:
        """OSError if it can't be written to."""
        os.makedirs(self._folder, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Of all that the function may call."""
        names = KEPT_WITH[self._source.parent.name]
        texts = [self._source.with_name(f"{name}.py").read_bytes() for name in names]
        return hashlib.sha256(b"".join(texts)).hexdigest()

    def get_disambiguator(self) -> str:
        return str(self._line)
