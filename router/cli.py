"""`warmgate`: serve, check a configuration, list the settings."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from router import config as settings
from router.routing import POLICIES
from router.settings import RouterConfig

if TYPE_CHECKING:
    from rich.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 for a wrong configuration."""
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    args.argv = argv[1:]
    try:
        return int(args.run(args))
    except settings.ConfigError as exc:
        sys.stderr.write(f"warmgate: {exc}\n")
        return 2


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmgate", description="Sends each prompt to the replica that holds its prefix."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    check = commands.add_parser("check", help="check a configuration and print it in full")
    _add_config_flags(check)
    check.add_argument(
        "--live", action="store_true", help="probe every replica and name what is wrong with it"
    )
    check.set_defaults(run=_check)
    listing = commands.add_parser("settings", help="list every setting with its default")
    listing.set_defaults(run=_settings)
    tokens = commands.add_parser("tokens", help="show a request as tokens, blocks and hashes")
    _add_config_flags(tokens)
    tokens.add_argument("body", metavar="FILE|-", help="the request's JSON body")
    tokens.add_argument("--path", default="/v1/chat/completions", help="where it is sent")
    tokens.add_argument("--block-size", type=int, default=16, help="tokens in a block")
    tokens.add_argument("--adapter", help="LoRA adapter that the request is for")
    tokens.add_argument("--after", metavar="FILE", help="a request to be remembered before it")
    tokens.set_defaults(run=_tokens)
    _add_explain(commands)
    key = commands.add_parser("key", help="make an API key, and the hash for tenants.keys_file")
    key.set_defaults(run=_key)
    shown = commands.add_parser("version", help="print the version")
    shown.set_defaults(run=_version)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser("serve", help="run the gateway")
    _add_config_flags(serve)
    serve.add_argument(
        "--processes", type=int, default=1, metavar="N", help="routers on one port, one core each"
    )
    serve.set_defaults(run=_serve)
    index = commands.add_parser(
        "index", help="run the central index, for routers with index.mode=shared"
    )
    _add_config_flags(index)
    # what `serve --processes` was given it passes on
    index.add_argument("--processes", type=int, help=argparse.SUPPRESS)
    index.set_defaults(run=_index)


def _add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("explain", help="where would a request go now, and why")
    parser.add_argument("body", metavar="FILE|-", help="the request's JSON body")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of a running router")
    parser.add_argument("--path", default="/v1/chat/completions", help="where it would be sent")
    parser.add_argument("--session", help="x-session-id that it would carry")
    parser.add_argument("--json", action="store_true", help="the answer as it came")
    parser.set_defaults(run=_explain)
    parser = commands.add_parser("shadow", help="what the policies of routing.shadow would do")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of a running router")
    parser.add_argument("--json", action="store_true", help="the answer as it came")
    parser.set_defaults(run=_shadow)


def _add_config_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings")
    parser.add_argument("--host", help="address to bind (listen.host)")
    parser.add_argument("--port", type=int, help="port to bind, 0 for a free one (listen.port)")
    parser.add_argument("--policy", choices=sorted(POLICIES), help="routing.policy")
    parser.add_argument(
        "--tokenizer",
        action="append",
        default=[],
        metavar="[MODEL=]DIR",
        help="directory with tokenizer.json, for one model or for all; repeatable",
    )
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL|id=…,url=…",
        help="a replica: its URL, or id=…,url=…[,events=tcp://…][,replay=tcp://…]"
        "[,topic=…][,rank=…]; repeatable",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting; repeatable, wins over file and environment",
    )


def _config_of(args: argparse.Namespace) -> RouterConfig:
    config = settings.load_config(args.config, [*_shorthands(args), *args.set])
    if not args.replica:
        return config
    tree = msgspec.to_builtins(config)
    flags = [settings.parse_replica(text) for text in args.replica]
    tree["replicas"] = [*tree["replicas"], *flags]
    return settings.parse_config(tree)


def _shorthands(args: argparse.Namespace) -> list[str]:
    pairs: dict[str, Any] = {
        "listen.host": args.host,
        "listen.port": args.port,
        "routing.policy": args.policy,
    }
    for text in args.tokenizer:
        model, sign, directory = text.rpartition("=")
        pairs[f"tokens.models.{model}" if sign else "tokens.default"] = directory
    return [f"{key}={value}" for key, value in pairs.items() if value is not None]


def _serve(args: argparse.Namespace) -> int:
    config = _config_of(args)
    # Only now: `check` and `--help` need none of what serving imports.
    from router.log import configure
    from router.serve import run

    told = config.log
    configure(told.level, access_log=told.access, is_json=told.format == "json")
    if args.processes != 1:
        from router import processes

        return processes.run(config, args.argv, args.processes)
    return run(config, lambda: _config_of(args))


def _index(args: argparse.Namespace) -> int:
    config = _config_of(args)
    from router.log import configure
    from router.serve_index import run

    configure(config.log.level, access_log=False)
    return run(config, lambda: _config_of(args))


def _check(args: argparse.Namespace) -> int:
    config = _config_of(args)
    if args.live:
        return _check_live(config)
    tree = msgspec.to_builtins(config)
    sys.stdout.write(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    return 0


def _check_live(config: RouterConfig) -> int:
    import asyncio

    from router.selfcheck import check_live, in_words

    async def check() -> bool:
        is_good = True
        async for verdict in check_live(config):
            sys.stdout.write(in_words(verdict))
            is_good &= verdict.is_good
        return is_good

    return 0 if asyncio.run(check()) else 1


def _settings(args: argparse.Namespace) -> int:
    for name, default, sentence in settings.describe():
        sys.stdout.write(f"{name} = {default}\n    {sentence}\n")
    return 0


def _tokens(args: argparse.Namespace) -> int:
    told = _config_of(args).tokens
    from router.tokens import NotShown, model_sources, show

    files = [name for name in (args.after, args.body) if name]
    try:
        bodies = [sys.stdin.buffer.read() if f == "-" else Path(f).read_bytes() for f in files]
        sources = model_sources(told.models, told.default, told.engines)
        for line in show(sources, args.path, bodies, args.block_size, args.adapter):
            sys.stdout.write(f"{line}\n")
    except (NotShown, OSError) as exc:
        raise settings.ConfigError(str(exc)) from exc
    return 0


def _key(args: argparse.Namespace) -> int:
    from router.tenants.keys import hash_key, new_key

    key = new_key()
    sys.stdout.write(f"{key}\n{hash_key(key)}\n")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from router import explain

    body = sys.stdin.buffer.read() if args.body == "-" else Path(args.body).read_bytes()
    ask = partial(explain.ask, args.url, args.path, body, args.session)
    return _show(ask, explain.show, as_json=args.json)


def _shadow(args: argparse.Namespace) -> int:
    from router import explain

    ask = partial(explain.ask_shadow, args.url)
    return _show(ask, explain.show_shadow, as_json=args.json)


def _show(
    ask: Callable[[], dict[str, Any]],
    show: "Callable[[dict[str, Any], Console], None]",
    *,
    as_json: bool,
) -> int:
    from rich.console import Console

    from router.explain import Unexplained

    try:
        answer = ask()
    except Unexplained as exc:
        sys.stderr.write(f"warmgate: {exc}\n")
        return 1
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n")
    else:
        show(answer, Console(width=None if sys.stdout.isatty() else 150))
    return 0


def _version(args: argparse.Namespace) -> int:
    sys.stdout.write(f"warmgate {version('warmgate')}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
