"""A local model through transformers' `generate`: on a CPU or one GPU, in batches padded on the left."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cudal1_agent import gpu_memory
from cudal1_agent.errors import PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGE = 1_000_000_000
"""Number of parameters from which weights are bfloat16. In float32 with Adam, 7 billion parameters take 112 GB."""

COMPILED_FROM = 2000
"""Decoding steps from which `compiled` compiles them. Compiling takes half a minute. A step of 64 answers takes 7 ms
compiled and 26 ms otherwise (docs/results/generation_h100.jsonl)."""

Batching = Literal["static", "continuous", "compiled"]
"""How answers are batched; see `PolicySettings.batching`."""

NO_CHAT: Mapping[str, Any] = {}
"""No further arguments of a chat template."""


class TransformersPolicy:
    """A causal language model in this process."""

    def __init__(
        self,
        model: str | Path,
        *,
        use_cpu: bool,
        batch: int = 32,
        batching: Batching = "static",
        chat: Mapping[str, Any] = NO_CHAT,
        progress: Callable[[int, int], None] | None = None,
        written: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Load a model and its tokenizer.

        Args:
            model: Folder or hub name.
            use_cpu: Stay on the CPU even if there is a GPU.
            batch: Maximum answers per batch. With the same seed, another batch size draws other answers.
            batching: How batches are made, see `PolicySettings.batching`.
            chat: Further arguments of the chat template.
            progress: Receives the number of answers so far and the total.
            written: Receives numbers of generated tokens.

        Raises:
            PolicyError: There is no such model, or it is not a causal language model.
        """
        import torch

        self.tokenizer = load_tokenizer(model)
        self._device = torch.device("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
        if batching == "continuous" and self._device.type == "cpu":
            raise PolicyError(
                "policy.batching = 'continuous' needs a GPU: on a CPU transformers waits for one; use 'static'"
            )
        dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        self._model: Any = load_model(model, self.tokenizer, use_cpu=use_cpu, dtype=dtype)
        if batching != "continuous":
            from cudal1_agent.policies.grouped_attention import use_grouped_attention

            use_grouped_attention(self._model)
        self._model.to(self._device).eval()
        self._batch = batch
        self._batching: Batching = batching
        self._chat = chat
        self._progress = progress
        self._written = written

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt; see `Policy`."""
        import torch

        # A chat template adds its special tokens itself.
        special = self.tokenizer.chat_template is None
        ids = [
            self.tokenizer(as_chat(self.tokenizer, prompt, self._chat), add_special_tokens=special)["input_ids"]
            for prompt in prompts
        ]
        inputs = [one for one in ids for _ in range(n)]
        # Prompts of similar length together, for less padding.
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
        answers = [""] * len(inputs)
        torch.manual_seed(seed)
        # Batches of equal size: a compiled step reads the whole cache of its rows, whether an answer needs them or not.
        batches = 1 if self._batching == "continuous" else math.ceil(len(order) / self._batch)
        size = math.ceil(len(order) / max(batches, 1))
        # The compiled step has one shape: the rows of a batch, padded to the longest prompt.
        compiled = self._batching == "compiled" and batches * max_new_tokens >= COMPILED_FROM
        longest = max(map(len, inputs)) if compiled else None
        for start in range(0, len(order), max(size, 1)):
            part = order[start : start + size]
            rows = [inputs[index] for index in part]
            if longest is not None:
                rows += [rows[-1]] * (size - len(rows))
            written = self._answer(rows, temperature, max_new_tokens, longest)[: len(part)]
            texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
            self._written(sum(map(len, written)))
            for index, answer in zip(part, texts, strict=True):
                answers[index] = answer
            if self._progress is not None:
                self._progress(start + len(part), len(order))
        gpu_memory.release()
        return [answers[i * n : (i + 1) * n] for i in range(len(prompts))]

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _answer(
        self, inputs: list[list[int]], temperature: float, max_new_tokens: int, longest: int | None = None
    ) -> list[list[int]]:
        """Return the tokens of one answer to each input, up to the token that ends it.

        Args:
            inputs: Tokens of the prompts.
            temperature: 0 is greedy.
            max_new_tokens: Longest answer in tokens.
            longest: Length in tokens to which prompts are padded for a compiled step; None is the longest input.
        """
        from transformers import GenerationConfig

        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if longest is not None:
            sampling["cache_implementation"] = "static"  # on a GPU `generate` then compiles the step
        ends: list[int] = self._model.generation_config.eos_token_id
        config = GenerationConfig(
            max_new_tokens=max_new_tokens, pad_token_id=self.tokenizer.pad_token_id, eos_token_id=ends, **sampling
        )
        # No `inference_mode` here: continuous batching writes, in a thread of its own, to tensors made in this one.
        if self._batching == "continuous":
            found = list(self._model.generate_batch(inputs, generation_config=config).values())
            if faults := [one.error for one in found if one.error is not None]:
                raise PolicyError(f"continuous batching failed: {faults[0]}; set policy.batching = 'static'")
            return [list(one.generated_tokens) for one in found]
        encoded = self.tokenizer.pad(
            {"input_ids": inputs},
            padding=True if longest is None else "max_length",
            max_length=longest,
            padding_side="left",
            return_tensors="pt",
        )
        output = self._model.generate(**encoded.to(self._device), generation_config=config)
        return [_until(ids, ends) for ids in output[:, encoded["input_ids"].shape[1] :].tolist()]


def _until(ids: list[int], ends: Sequence[int]) -> list[int]:
    """Return the tokens up to and including the first that ends an answer."""
    return next((ids[: place + 1] for place, token in enumerate(ids) if token in ends), ids)


def load_model(
    model: str | Path, tokenizer: PreTrainedTokenizerBase, *, use_cpu: bool, dtype: Any | None = None
) -> Any:
    """Load a causal language model with the end tokens of its tokenizer and chat template.

    Args:
        model: Folder or hub name.
        tokenizer: Its tokenizer.
        use_cpu: Whether it stays on the CPU.
        dtype: Type of the weights; None is the type for training: float32, or bfloat16 from `LARGE` parameters on.

    Raises:
        PolicyError: There is no such model, or it is not a causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if dtype is None:
        dtype = torch.bfloat16 if parameters_of(model) >= LARGE else torch.float32
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype, attn_implementation=attention_of(use_cpu=use_cpu)
        )
    except (OSError, ValueError) as error:
        raise PolicyError(f"cannot load a causal language model from {model}: {one_line(error)}") from error
    loaded.generation_config.eos_token_id = end_tokens(tokenizer, loaded.generation_config.eos_token_id)
    loaded.generation_config.pad_token_id = tokenizer.pad_token_id
    return loaded


def attention_of(*, use_cpu: bool) -> str:
    """Return the fastest implementation of attention that is installed."""
    return "flash_attention_2" if not use_cpu and find_spec("flash_attn") is not None else "sdpa"


def parameters_of(model: str | Path) -> int:
    """Return how many parameters a model has, without reading its weights.

    Raises:
        PolicyError: There is no such model, or it is not a causal language model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            empty: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    except (OSError, ValueError) as error:
        raise PolicyError(f"cannot load a causal language model from {model}: {one_line(error)}") from error
    return sum(parameter.numel() for parameter in empty.parameters())


def one_line(error: Exception) -> str:
    """Return an exception's message on one line, as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".;")


def end_tokens(tokenizer: PreTrainedTokenizerBase, declared: int | Sequence[int] | None = None) -> list[int]:
    """Return the tokens that end an answer: the tokenizer's, those that the model declares, and the chat template's.

    A base model's end token often differs from the one that its chat template writes after an answer. With only the
    former, a model that was trained on the template would generate up to the length limit.
    """
    known = [declared] if isinstance(declared, int) else list(declared or ())
    ends = [tokenizer.eos_token_id, *known]
    if tokenizer.chat_template is not None:
        answer = "some answer"
        talk = [*as_messages("some prompt"), {"role": "assistant", "content": answer}]
        chat = tokenizer.apply_chat_template(talk, tokenize=False)
        assert isinstance(chat, str)
        behind = tokenizer(chat.rpartition(answer)[2].strip(), add_special_tokens=False)["input_ids"]
        whole: Any = tokenizer  # its type lacks methods that every tokenizer has
        special: set[int] = {*whole.all_special_ids, *whole.get_added_vocab().values()}
        ends += [token for token in list(behind)[:1] if token in special]
    return list(dict.fromkeys(int(token) for token in ends if token is not None))


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; it pads with its end token if it has no pad token.

    Raises:
        PolicyError: The tokenizer cannot be loaded.
    """
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise PolicyError(f"{model} holds neither a run nor a model (it has no config.json); name another folder")
    _look_for(str(model))
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"cannot load a tokenizer from {model}: {one_line(error)}; name a folder in Hugging Face's format "
            "or a model on its hub"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_TIMEOUT_S = 10.0


def _look_for(model: str) -> None:
    """Ask the hub for a model that is neither a folder nor cached; transformers would ask for two minutes.

    Raises:
        PolicyError: It is no name for a hub, the hub has no such model, or cannot be reached.
    """
    if Path(model).exists():
        return
    if not _HUB_NAME.fullmatch(model):
        raise PolicyError(
            f"there is no folder {model}; name a run, RUN@STAGE, a folder of a model, or a model on the hub"
        )
    from httpx import HTTPError
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    try:
        HfApi().model_info(model, timeout=_HUB_TIMEOUT_S)
    except (HTTPError, HfHubHTTPError, OfflineModeIsEnabled, ValueError) as error:
        raise PolicyError(
            f"{model} is no folder, and the hub gives no model of that name: {one_line(error)}"
        ) from error


def as_chat(tokenizer: PreTrainedTokenizerBase, prompt: str, chat_kwargs: Mapping[str, Any] = NO_CHAT) -> str:
    """Return a prompt in the model's chat template, or unchanged if there is none."""
    if tokenizer.chat_template is None:
        return prompt
    chat = tokenizer.apply_chat_template(as_messages(prompt), tokenize=False, add_generation_prompt=True, **chat_kwargs)
    assert isinstance(chat, str)
    return chat


def tokens_of(
    tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str, chat_kwargs: Mapping[str, Any] = NO_CHAT
) -> int:
    """Return how many tokens TRL's SFTTrainer makes of a prompt and its answer, end token included."""
    if tokenizer.chat_template is None:
        return len(tokenizer(prompt + answer + str(tokenizer.eos_token))["input_ids"])
    talk = [*as_messages(prompt), {"role": "assistant", "content": answer}]
    chat = tokenizer.apply_chat_template(talk, tokenize=False, **chat_kwargs)
    assert isinstance(chat, str)
    return len(tokenizer(chat, add_special_tokens=False)["input_ids"])


def as_messages(prompt: str) -> list[dict[str, str]]:
    """Return a prompt as a conversation of one message."""
    return [{"role": "user", "content": prompt}]
