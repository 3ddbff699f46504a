"""`warmgate-worker`: what runs at an engine's side."""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence

COMMANDS = {"engine": "workers.engine.cli", "vllm": "workers.launch.cli"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Only the command's own module is imported: the launcher needs none of the engine's parts.
    wanted = [name for name in COMMANDS if name in given[:1]] or list(COMMANDS)
    parsed = make_parser(wanted).parse_args(given)
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def make_parser(commands: Iterable[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The command line of some commands, or of all."""
    parser = argparse.ArgumentParser(prog="warmgate-worker", description=__doc__)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in commands:
        importlib.import_module(COMMANDS[name]).add_parser(subparsers)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
