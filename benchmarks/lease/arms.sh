#!/usr/bin/env bash
# The first look at stage 3 (docs/results/training.md) on one GPU, with verdicts of a service on another: bash benchmarks/lease/arms.sh OUT
# A base (stages 1 and 2) is trained, and stage 3 is tried meanwhile; then nine arms run side by side, forked from the base's
# measured programs. If the try ends in an error, the arms write their answers without compiled steps. A base that fails beside
# the try is resumed alone. OUT/arms says that this script has ended, well or not. Resumable. On a CPU:
# LOOK="configs/look_cpu.toml" MODEL= (README.md). AT_ONCE=1 lets the service have the same GPU, which no arm uses while it
# waits for verdicts; ARMS="bucket_2 random_2 none_2" runs some, where OUT/base is the base of an earlier lease.
set -euo pipefail
out=$1
look=${LOOK-configs/gpu.toml configs/gpu/fast.toml configs/gpu/look.toml} model=${MODEL---model $out/smollm2} port=${PORT:-8011}
judge="--judge-url http://127.0.0.1:$port"
trap 'touch "$out/arms"' EXIT
rm -f "$out/arms"
if [ -n "$model" ]; then until [ -f "$out/ready" ]; do sleep 0.2; done; fi
until python3 -c "import socket; socket.create_connection(('127.0.0.1', $port))" 2> /dev/null; do sleep 0.5; done

train() { # NAME ARGUMENTS...: begin or resume the run
    local run=$out/$1
    if [ -f "$run/config.json" ]; then
        cudal1-agent train --run-dir "$run" --resume
    else
        cudal1-agent train "${@:2}" $judge --run-dir "$run"
    fi >> "$run.txt" 2>&1
}

try_stage_3() {
    printf '[sft.trl]\nmax_steps = 10\nsave_steps = 10\nper_device_train_batch_size = 1\n[contrast]\ntasks = 2\n[contrast.trl]\nmax_steps = 2\n' > "$out/tried.toml"
    train tried --config $look "$out/tried.toml" $model --stages sft,contrast && touch "$out/works"
}

if [ ! -f "$out/works" ]; then try_stage_3 & fi
base() { [ -f "$out/base/marks/finished.json" ] || train base --config $look $model --stages sft,self_train; }
base || true
wait
base
if [ ! -f "$out/works" ]; then
    python3 - "$out/base/config.json" << 'PYTHON'
import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
settings = json.loads(path.read_text())
settings["policy"]["batching"] = "static"
path.write_text(json.dumps(settings))
PYTHON
fi
set -- ${ARMS:-bucket_1 random_1 none_1 bucket_2 random_2 none_2 bucket_3 random_3 none_3}
first=$1
arm() { train "$1" --from "$2" --arm "${1%_*}" --seed "${1#*_}"; }
arm "$first" "$out/base@self_train" &
began=$!
shift
for name in "$@"; do
    until [ "$(jobs -rp | wc -l)" -lt "${AT_ONCE:-9}" ]; do sleep 1; done
    until [ -f "$out/$first/marks/seeds.json" ]; do kill -0 "$began"; sleep 1; done
    arm "$name" "$out/$first@seeds" &
done
wait
