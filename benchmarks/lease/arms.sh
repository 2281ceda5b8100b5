#!/usr/bin/env bash
# The first look at stage 3 (docs/results/training.md) on one GPU, with verdicts of a service on another: bash benchmarks/lease/arms.sh OUT
# A base (stages 1 and 2) is trained; then nine arms run side by side, forked from the base's measured programs. An arm that
# ends in an error goes on without compiled steps. OUT/arms says that this script has ended, well or not. Resumable. On a CPU:
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

arm() { # NAME FROM: one arm of stage 3
    train "$1" --from "$2" --arm "${1%_*}" --seed "${1#*_}" && return
    sed -i 's/"batching": *"compiled"/"batching": "static"/' "$out/$1/config.json" && train "$1"
}

if [ ! -f "$out/base/marks/finished.json" ]; then train base --config $look $model --stages sft,self_train; fi
set -- ${ARMS:-bucket_1 random_1 none_1 bucket_2 random_2 none_2 bucket_3 random_3 none_3}
first=$1
arm "$first" "$out/base@self_train" &
began=$!
shift
for name in "$@"; do
    until [ "$(jobs -rp | wc -l)" -lt "${AT_ONCE:-9}" ]; do sleep 1; done
    until [ -f "$out/$first/marks/seeds.json" ]; do kill -0 "$began"; sleep 1; done
    arm "$name" "$out/$first@seeds" &
done
wait
