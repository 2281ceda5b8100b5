"""The embedded default policy: a byte-level BPE and a small Llama, made without a download.

The tokenizer learns its merges from the training tasks and their variants, so a line of a program is often one token.
Each digit is one token, so that unseen sizes are tokenised like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cudal1_data import Device, Task
from cudal1_env.exemplars import Exemplar

from cudal1_agent.data.examples import Program, example
from cudal1_agent.data.prompts import build_answer, build_prompt
from cudal1_agent.settings import EmbeddedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAD = "<|pad|>"
"""Special token that pads short sequences."""
END = "<|end|>"
"""Special token after an answer."""
MARK = "cudal1_embedded"
"""Key in the configuration of an embedded model; it identifies the model after training."""


def tokenizer_texts(tasks: Iterable[Task], device: Device) -> list[str]:
    """Return the texts for training the tokenizer: a prompt and an answer for each variant of each task."""
    texts: list[str] = []
    for task in tasks:
        variants = [variant for variant in task.variants if device in variant.devices]
        for variant in variants:
            shown = [Exemplar(other.source, 1.0) for other in variants if other is not variant][:1]
            texts.append(build_prompt(task.source, shown, style="compact", device=device))
            texts.append(build_answer("code1", ", ".join(variant.techniques), variant.source))
    return texts


def make_tokenizer(texts: Sequence[str], *, vocabulary: int, context: int) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE whose merges stay within a line and never touch a digit.

    Args:
        texts: Training texts.
        vocabulary: Maximum number of tokens, including the 256 bytes and the two special tokens.
        context: Longest sequence, in tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[0-9]|[^0-9\n]*\n|[^0-9\n]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def make_embedded(
    out: Path,
    tasks: Sequence[Task],
    shape: EmbeddedModel,
    *,
    seed: int,
    device: Device = "cpu",
    programs: Sequence[Program] = (),
) -> Path:
    """Make tokenizer and model, and save both as a Hugging Face folder.

    Args:
        out: Folder to write; it may exist.
        tasks: Training tasks whose references and variants the tokenizer learns from.
        shape: Size of the model.
        seed: Seed of its weights.
        device: Device whose variants count.
        programs: Programs that stage 1 learns instead of the variants; the tokenizer learns from them too.

    Returns:
        `out`.
    """
    from transformers import set_seed

    texts = tokenizer_texts(tasks, device)
    for program in programs:
        shown = example(program, [], lambda task, _: build_prompt(task.source, [], style="compact", device=device))
        texts += [shown.prompt, shown.answer]
    tokenizer = make_tokenizer(texts, vocabulary=shape.vocabulary, context=shape.context)
    set_seed(seed)
    model = make_llama(shape, tokenizer)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def make_llama(shape: EmbeddedModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return a Llama with random weights; torch's global seed decides them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        initializer_range=shape.deviation,
        bos_token_id=None,
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
    )
    setattr(config, MARK, True)  # transformers saves it like any other name
    return LlamaForCausalLM(config)


def is_embedded(folder: str | Path) -> bool:
    """Return whether a folder holds an embedded model, trained or not, by its configuration."""
    path = Path(folder) / "config.json"
    return path.is_file() and MARK in json.loads(path.read_text(encoding="utf-8"))
