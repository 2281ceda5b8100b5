#!/usr/bin/env bash
# Wait until the plan is done or SECONDS have passed, say how far it is, and pack the small records:
# bash benchmarks/lease/watch.sh OUT RESULTS SECONDS (README.md)
set -euo pipefail
out=$1 results=$2 end=$(($(date +%s) + $3))
until [ -f "$out/all" ] || [ "$(date +%s)" -ge "$end" ]; do sleep 1; done
ls "$out" "$out"/*/marks | tr '\n' ' ' || true
tail -q -c 400 "$out"/*.txt | grep -v '^+' | tail -30 || true
bash "$(dirname "$0")/results.sh" "$out" "$results"
