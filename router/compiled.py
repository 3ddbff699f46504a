"""The one door to numba. Functions marked here are plain Python until `compile_all` replaces them,
in all modules that use them, by what numba makes of them.

Compiling takes some twenty seconds, once: what comes out is kept on disk (`cache_folder`). numba is
imported no sooner than an index is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Cells: TypeAlias = NDArray[np.uint32]

if TYPE_CHECKING:
    integer: type[int] = int
else:
    integer = np.int64
"""What numbers are in compiled code. A plain constant would be a type of its own to numba, and all
that it is handed to would be compiled for it alone."""

CACHE_FOLDER: Final = "router.cache_folder.CacheFolder"
# No reference counts: who calls keeps the arrays.
_OPTIONS: Final = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}

MODULES: Final = {
    "blocks": ("xxh3", "numbers"),
    "index": (
        *("layout", "units", "tables", "replica_sets", "booking", "kernels", "growing", "sweeping"),
    ),
}
"""All that is compiled, by package. Each imports none of another package's."""
NEIGHBOURS: Final = "index.neighbours"
"""What only one of several processes needs."""
WORDS: Final = "tokens.word_scan"
"""What only a process with tokenizers needs."""

KEPT_WITH: Final = {
    "blocks": MODULES["blocks"],
    "index": (*MODULES["index"], "neighbours"),
    "tokens": ("word_scan", "automaton"),
}
"""By package, the modules from which what was compiled of one of them is made."""

_parts: dict[Callable[..., Any], dict[str, bool]] = {}
_entries: dict[Callable[..., Any], list[str]] = {}


def inlined(function: Function) -> Function:
    """It becomes part of each function that calls it."""
    _parts[function] = {"no_cpython_wrapper": True, "forceinline": True}
    return function


def called(function: Function) -> Function:
    """It is compiled once, for all that call it."""
    _parts[function] = {"no_cpython_wrapper": True}
    return function


def entry(*signatures: str) -> Callable[[Function], Function]:
    """It is called from Python, with arguments of these types alone."""

    def mark(function: Function) -> Function:
        _entries[function] = list(signatures)
        return function

    return mark


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a function that is marked has been replaced."""
    return type(function) is not FunctionType


def compile_all(*more: str) -> None:
    """Compile what is marked, or take it from the cache. Does nothing the second time.

    `more`: modules that not everybody needs.
    """
    numba: Any = import_module("numba")
    for package, names in MODULES.items():
        for name in names:
            import_module(f"router.{package}.{name}")
    for name in more:
        import_module(f"router.{name}")
    if numba.config.DISABLE_JIT:
        return
    while _parts:
        function, how = _parts.popitem()
        _replace(function, numba.njit(**how, **_OPTIONS)(function))
    locators = getattr(numba.config, "CACHE_LOCATOR_CLASSES", "")
    numba.config.CACHE_LOCATOR_CLASSES = locators or CACHE_FOLDER
    try:
        while _entries:
            function, signatures = _entries.popitem()
            _replace(function, _compiled(numba, function, signatures))
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = locators


def _compiled(
    numba: Any, function: Callable[..., Any], signatures: list[str]
) -> Callable[..., Any]:
    made: Any = numba.njit(**_OPTIONS)(function)
    with suppress(RuntimeError, OSError):  # no folder that can be written to
        made._cache = import_module("router.cache_folder").Cache(function)
    for signature in signatures:
        made.compile(signature)
    made.disable_compile()
    kept: Callable[..., Any] = made
    return kept


def _replace(function: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    assert isinstance(function, FunctionType)
    for name, module in list(sys.modules.items()):
        if name.startswith("router.") and vars(module).get(function.__name__) is function:
            setattr(module, function.__name__, compiled)
