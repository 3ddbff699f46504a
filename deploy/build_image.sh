#!/bin/sh
# Builds the Dockerfile's target `router` for real, without a daemon or a registry: buildah in a
# chroot, on a base that debootstrap makes of Debian's packages (Python 3.11, as in the usual base).
# Then runs what the image says, as the user that it says, on its own root, read-only.
# As root: deploy/build_image.sh [FOLDER]. Leaves FOLDER/rootfs and FOLDER/image.json.
# Needs buildah debootstrap jq curl (apt-get install; `make build-image` does).
set -eu
cd "$(dirname "$0")/.."
folder=$(mkdir -p "${1:-build/image}" && cd "${1:-build/image}" && pwd)
mirror=${MIRROR:-http://deb.debian.org/debian}
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

ours() { buildah --root "$folder/store" --runroot "$folder/run" "$@"; }

base=localhost/python:3.11
if ! ours inspect --type image "$base" >/dev/null 2>&1; then
    rm -rf "$folder/base"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder/base" "$mirror" >"$folder/debootstrap.log"
    ln -s python3 "$folder/base/usr/bin/python"
    container=$(ours from scratch)
    ours add -q "$container" "$folder/base" / >/dev/null
    ours config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    ours commit -q --rm "$container" "$base" >/dev/null
    rm -rf "$folder/base"
fi

# what this machine needs to reach its package index
mounts="-v /etc/ssl/certs:/etc/ssl/certs:ro"
if test -f /etc/pip.conf; then mounts="$mounts -v /etc/pip.conf:/etc/pip.conf:ro"; fi
# shellcheck disable=SC2086  # several arguments
ours bud -q --pull-never --network host $mounts --build-arg BASE="$base" \
    --target router -f deploy/Dockerfile -t localhost/warmgate:built . >"$folder/id"
ours inspect --type image localhost/warmgate:built | jq .OCIv1.config >"$folder/image.json"

rm -rf "$folder/rootfs"
container=$(ours from --pull-never localhost/warmgate:built)
cp -a "$(ours mount "$container")" "$folder/rootfs"
ours rm "$container" >/dev/null
echo "built: $(jq -c '{User, Entrypoint, Cmd}' "$folder/image.json"), $(du -sm "$folder/rootfs" | cut -f1) MB of which $(du -sm "$folder/rootfs/opt/warmgate" | cut -f1) MB are Warmgate's"

deploy/run_image.sh "$folder"
