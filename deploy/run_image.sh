#!/bin/sh
# Starts the unpacked image FOLDER/rootfs as FOLDER/image.json says (user, environment, entry point,
# command), on a read-only root and without capabilities; asks /healthz, then ends it. As root.
set -eu
folder=$1
root="$folder/rootfs"
said=$(mktemp -u)
mkfifo "$said"
router=
trap 'test -z "$router" || kill "$router" 2>/dev/null || true; rm -f "$said"' EXIT
user=$(jq -r '.User | split(":")[0]' "$folder/image.json")
group=$(jq -r '.User | split(":")[1] // .[0]' "$folder/image.json")
environment=$(jq -r '.Env | @sh' "$folder/image.json")
command=$(jq -r '(.Entrypoint + .Cmd) | @sh' "$folder/image.json")
unshare --mount sh -eu -c '
    mount --make-rprivate /
    mount --bind "$1" "$1"
    mount -o remount,bind,ro "$1"
    if touch "$1/x" 2>/dev/null; then echo "the root is not read-only" >&2; exit 1; fi
    exec chroot "$1" setpriv --reuid="$2" --regid="$3" --clear-groups \
        --bounding-set=-all --inh-caps=-all --no-new-privs \
        sh -c "exec env -i $4 $5 --port 0"
' sh "$root" "$user" "$group" "$environment" "$command" >"$said" &
router=$!
read -r line <"$said"
url=$(printf '%s' "$line" | jq -r .url | sed 's/0\.0\.0\.0/127.0.0.1/')
curl --silent --fail --max-time 5 "$url/healthz"
uid=$(awk '/^Uid:/ {print $2}' "/proc/$router/status")
capabilities=$(awk '/^CapEff:/ {print $2}' "/proc/$router/status")
test "$uid" != 0
test "$capabilities" = 0000000000000000
kill -TERM "$router"
wait "$router"
router=
echo " ok: uid $uid, no capabilities, read-only root, ended with 0"

# a chat for a model of Mistral's, whose vocabulary its own library ships
unshare --mount sh -eu -c '
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$1/tmp"
    mkdir "$1/tmp/m"
    cp "$1"/opt/warmgate/lib/python3*/site-packages/mistral_common/data/tekken_240911.json "$1/tmp/m/tekken.json"
    chmod -R a+rX "$1/tmp/m"
    exec chroot "$1" setpriv --reuid="$2" --regid="$3" --clear-groups env -i PATH=/opt/warmgate/bin:/usr/bin HOME=/tmp \
        warmgate tokens --tokenizer /tmp/m -
' sh "$root" "$user" "$group" <<'JSON' | grep "^[0-9]* tokens,"
{"model": "m", "messages": [{"role": "user", "content": "Hello there"}]}
JSON
