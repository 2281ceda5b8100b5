#!/usr/bin/env bash
# Learn the answers of stage 2 again at another learning rate: bash benchmarks/lease/rate.sh RUN COPY RATE (README.md)
set -euo pipefail
run=$1 copy=$2 rate=$3
if [ ! -f "$copy/config.json" ]; then
    mkdir -p "$copy"
    tar -C "$run" --exclude trainer --exclude lock --exclude self_train/0/model -c . | tar -C "$copy" -x
    rm -f "$copy"/marks/{self_train.0,self_train.table,champions,finished}.json
    python3 - "$copy/config.json" "$rate" <<'PYTHON'
import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
settings = json.loads(path.read_text())
settings["self_train"]["trl"]["learning_rate"] = float(sys.argv[2])
path.write_text(json.dumps(settings))
PYTHON
fi
exec cudal1-agent train --run-dir "$copy" --resume
