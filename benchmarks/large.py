"""Memory of a large model with adapters: one SFT step and one GRPO step against the estimate of `train --dry-run`.

    python benchmarks/large.py OUT.jsonl                    # 7 billion random parameters, one GPU of 80 GB or more
    python benchmarks/large.py OUT.jsonl --shape tiny       # the same on a CPU, where the peak is not measured

The model is created next to OUT and trained by `cudal1_agent.train` with configs/large.toml, with a fresh process for
each stage. A line has the estimate, torch's peaks of allocated and reserved memory, and the ratio of estimate to
allocated peak; the exit code is 1 if a ratio is outside 0.85 to 1.15. Stages that are in OUT are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parents[1] / "configs" / "large.toml"
STAGES = ("sft", "contrast")
SHAPES: dict[str, dict[str, Any]] = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
}
CONTEXT = 4096
VOCABULARY = 32000
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
WITHIN = 0.15


def main() -> int:
    """Make the model, run a process for each missing stage, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--stage", choices=STAGES, help="only this stage, in this process")
    options = parser.parse_args()
    model = options.out.with_name(f"{options.out.stem}-{options.shape}")
    if options.stage is not None:
        line = measured(options.stage, model, options.out.with_name(f"{model.name}-{options.stage}"), options.device)
        with options.out.open("a") as file:
            file.write(json.dumps({"shape": options.shape, **line}) + "\n")
        return 0
    if not (model / "tokenizer.json").is_file():  # written last
        make(model, SHAPES[options.shape])
    for stage in STAGES:
        if stage not in {line["stage"] for line in lines(options.out)}:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--stage", stage], check=True)
    return int(not all(close(line) for line in lines(options.out)))


def lines(out: Path) -> list[dict[str, Any]]:
    """Return the earlier lines of OUT."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []


def close(line: dict[str, Any]) -> bool:
    """Return whether an estimate is near the measured peak; True without one."""
    return line["ratio"] is None or abs(line["ratio"] - 1) <= WITHIN


def make(folder: Path, shape: dict[str, Any]) -> None:
    """Write a Llama with random weights in bfloat16, its tokenizer and a chat template."""
    import torch
    from cudal1_agent.policies.embedded import make_tokenizer, tokenizer_texts
    from cudal1_data import load_suite
    from transformers import AutoModelForCausalLM, LlamaConfig

    texts = tokenizer_texts(load_suite("starter", device="cpu").train, "cpu")
    tokenizer: Any = make_tokenizer(texts, vocabulary=2048, context=CONTEXT)
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        **shape,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(stage: str, model: Path, run: Path, device: str) -> dict[str, Any]:
    """Train one step of a stage; return its peak memory and the estimate."""
    import torch
    from cudal1_agent.config import load_settings
    from cudal1_agent.preflight import estimate, shape_of
    from cudal1_agent.run.judge import stays_on_cpu
    from cudal1_agent.train import train

    settings = load_settings(CONFIG, {"model": str(model), "stages": (stage,), "device": device})
    expected = estimate(shape_of(model), settings, use_cpu=stays_on_cpu(settings)).memory_bytes
    shutil.rmtree(run, ignore_errors=True)
    train(settings, run)
    on_gpu = not stays_on_cpu(settings)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    shutil.rmtree(run)
    return {
        "stage": stage,
        "machine": torch.cuda.get_device_name() if on_gpu else "cpu",
        "estimate_bytes": expected,
        "peak_bytes": peak,
        "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        "ratio": None if peak is None else expected / peak,
    }


if __name__ == "__main__":
    sys.exit(main())
