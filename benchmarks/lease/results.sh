#!/usr/bin/env bash
# Pack what a lease measured, and a run with its last model: bash benchmarks/lease/results.sh OUT RESULTS [RUN] (README.md)
set -euo pipefail
out=$1 results=$2 run=${3:-}
mkdir -p "$results"
tar -C "$out" --exclude smollm2 --exclude trainer --exclude model --exclude 'large-*' -czf "$results/records.tgz" .
if [ -n "$run" ]; then
    old=()
    if [ -d "$out/$run/stages/self_train/model" ]; then old=(--exclude sft/model); fi
    tar -C "$out" --exclude trainer "${old[@]}" -c "$run" | split --bytes 15M --numeric-suffixes - "$results/$run.tar."
fi
ls -l "$results"
