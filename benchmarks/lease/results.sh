#!/usr/bin/env bash
# Pack what a lease measured, and a run with its last model: bash benchmarks/lease/results.sh OUT RESULTS [RUN] (README.md)
# The model's weights are rounded to bfloat16, half of the bytes; a policy on a GPU reads them so in any case.
set -euo pipefail
out=$1 results=$2 run=${3:-}
mkdir -p "$results"
tar -C "$out" --exclude smollm2 --exclude trainer --exclude model --exclude 'large-*' -czf "$results/records.tgz" .
if [ -n "$run" ]; then
    old=()
    if compgen -G "$out/$run/stages/self_train/*/model" > /dev/null; then old=(--exclude sft/model); fi
    copy=$(mktemp -d)
    tar -C "$out" --exclude trainer "${old[@]}" -c "$run" | tar -C "$copy" -x
    find "$copy" -name model.safetensors -exec python3 -c '
import sys
from safetensors.torch import load_file, save_file
for name in sys.argv[1:]:
    save_file({key: one.bfloat16() for key, one in load_file(name).items()}, name, metadata={"format": "pt"})' {} +
    tar -C "$copy" -c "$run" | split --bytes 15M --numeric-suffixes - "$results/$run.tar."
    rm -r "$copy"
fi
ls -l "$results"
