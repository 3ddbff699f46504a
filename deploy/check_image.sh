#!/bin/sh
# Does what the Dockerfile's target `router` does, without a container engine: the same files and
# commands, then the router as uid 10001 on a read-only root. Needs root, unshare, setpriv, curl.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
router=
trap 'test -z "$router" || kill "$router" 2>/dev/null || true; rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/src"
# what .dockerignore lets through
tar -cf - --exclude=__pycache__ pyproject.toml constraints.txt README.md LICENSE router workers loadgen |
    tar -xf - -C "$work/src"
"${PYTHON:-python3}" -m venv "$work/opt"
(cd "$work/src" && "$work/opt/bin/pip" install --quiet --no-cache-dir --constraint constraints.txt ".[k8s,otel,mistral]")
"$work/opt/bin/pip" uninstall --quiet --yes pip
(cd / && NUMBA_CPU_NAME=generic "$work/opt/bin/python" -c 'from router.compiled import NEIGHBOURS, WORDS, compile_all; compile_all(NEIGHBOURS, WORDS)')
rm -rf "$work/src"
mkfifo "$work/said"
unshare --mount sh -eu -c '
    mount --make-rprivate /
    mount -o remount,bind,ro /
    if touch "$1/x" 2>/dev/null; then echo "the root is not read-only" >&2; exit 1; fi
    cd /
    exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
        env -i PATH="$1/opt/bin" HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CPU_NAME=generic \
        warmgate serve --host 127.0.0.1 --port 0
' sh "$work" >"$work/said" &
router=$!
read -r line <"$work/said"
url=$(printf '%s' "$line" | sed 's/.*"url": *"\([^"]*\)".*/\1/')
curl --silent --fail --max-time 5 "$url/healthz"
uid=$(awk '/^Uid:/ {print $2}' "/proc/$router/status")
test "$uid" = 10001
"$work/opt/bin/python" - constraints.txt <<'PYTHON'
import importlib.metadata, importlib.util, pathlib, re, sys
assert importlib.util.find_spec("kubernetes_asyncio") and not importlib.util.find_spec("pip")
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
lines = pathlib.Path(sys.argv[1]).read_text().split()
pinned = {plain(name): version for name, _, version in (line.partition("==") for line in lines)}
found = {plain(d.name): d.version for d in importlib.metadata.distributions()}
loose = {n: v for n, v in found.items() if pinned.get(n) != v and n not in ("warmgate", "setuptools")}
assert not loose, f"not as pinned: {loose}"
print(f" {len(found)} packages, all as pinned;", end="")
PYTHON
# a model of Mistral's, whose vocabulary its own library ships
mkdir "$work/mistral"
ln -s "$work"/opt/lib/python3*/site-packages/mistral_common/data/tekken_240911.json "$work/mistral/tekken.json"
ids=$("$work/opt/bin/warmgate" tokens --tokenizer "$work/mistral" - <<'JSON' | sed -n 1p
{"model": "m", "messages": [{"role": "user", "content": "Hello there"}]}
JSON
)
case $ids in *"tokens"*) ;; *) echo "no tokens of a Mistral chat: $ids" >&2; exit 1 ;; esac
kill -TERM "$router"
wait "$router"
router=
echo " ok: uid $uid, read-only root, ended with 0; $(du -sm "$work/opt" | cut -f1) MB"
