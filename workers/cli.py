"""`warmgate-worker`: what runs at an engine's side."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

COMMANDS = {"engine": "workers.engine.cli", "vllm": "workers.launch.cli"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="warmgate-worker", description=__doc__)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    # Only the command's own module is imported: the launcher needs none of the engine's parts.
    wanted = [name for name in COMMANDS if name in given[:1]] or list(COMMANDS)
    for name in wanted:
        importlib.import_module(COMMANDS[name]).add_parser(subparsers)
    parsed = parser.parse_args(given)
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


if __name__ == "__main__":
    raise SystemExit(main())
