#!/bin/bash
# Puts a real kube-apiserver and kube-controller-manager into FOLDER, built from Debian 12's own source
# package (1.20, the last that Debian has). As root: control_plane.sh FOLDER. Takes some ten minutes
# and 3 GB while it builds; needs no registry and no binaries but Debian's.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p lists/partial home
# the machine's own Debian sources, asked for source packages
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    if test -f "$list"; then sed -n 's/^deb /deb-src /p' "$list" | grep -i debian || true; fi
done >sources.list
for list in /etc/apt/sources.list.d/debian*.sources; do
    if test -f "$list"; then
        awk '/^URIs:/{u=$2} /^Suites:/{$1="";s=$0} /^Components:/{$1="";c=$0} /^Signed-By:/{k=$2}
             /^$/{if(u){n=split(s,S," ");for(i=1;i<=n;i++)print "deb-src [signed-by=" k "] " u " " S[i] c;u=""}}' \
            <(cat "$list"; echo)
    fi
done >>sources.list
options="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$work/lists -o APT::Sandbox::User=root"
# shellcheck disable=SC2086  # several arguments
apt-get -qq $options update
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    golang-go dpkg-dev rsync jq make golang-github-modern-go-reflect2-dev >/dev/null
# shellcheck disable=SC2086
apt-get -qq $options source --download-only kubernetes
dpkg-source -x kubernetes_*.dsc tree >/dev/null
cd tree
# reflect2 1.0.1 in the vendor tree crashes when built with Go 1.18 or later: Debian's 1.0.2
vendor=vendor/github.com/modern-go/reflect2
rm -f $vendor/*.go $vendor/*.s
cp -L /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $vendor/
rm -f $vendor/*_test.go
mkdir -p .go/src/k8s.io
ln -s ../../.. .go/src/k8s.io/kubernetes
printf 'KUBE_GIT_COMMIT=0\nKUBE_GIT_TREE_STATE=clean\nKUBE_GIT_VERSION=v1.20.2\nKUBE_GIT_MAJOR=1\nKUBE_GIT_MINOR=20\n' >"$work/version"
export GOPATH=$PWD/.go CGO_ENABLED=0 HOME=$work/home GOCACHE=$work/cache GOPROXY=off GO111MODULE=off
export GOFLAGS=-p=2 KUBE_GIT_VERSION_FILE=$work/version
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager"
cp _output/local/bin/linux/amd64/kube-* "$out/"
