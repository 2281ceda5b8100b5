"""A local model through transformers' own `generate`: on a CPU or on one GPU, in batches padded on the left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal1_agent.errors import PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TransformersPolicy:
    """A causal language model in this process."""

    def __init__(
        self,
        model: str | Path,
        *,
        use_cpu: bool,
        batch: int = 32,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load a model and its tokenizer.

        Args:
            model: Folder or hub name.
            use_cpu: Stay on the CPU where there is a GPU.
            batch: Answers that are written at a time. Part of what the seed decides: another batch draws others.
            progress: Told how many of how many answers are written.

        Raises:
            PolicyError: There is no such model, or it is none that writes text.
        """
        import torch
        from transformers import AutoModelForCausalLM

        self.tokenizer = load_tokenizer(model)
        self._device = torch.device("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
        dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
        except (OSError, ValueError) as error:
            raise PolicyError(f"cannot load a causal language model from {model}: {error}") from error
        self._model.to(self._device).eval()
        self._batch = batch
        self._progress = progress

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt; see `Policy`."""
        import torch

        texts = [as_chat(self.tokenizer, prompt) for prompt in prompts for _ in range(n)]
        # Prompts of like length together: less padding.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        answers = [""] * len(texts)
        torch.manual_seed(seed)
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            for index, answer in zip(
                part, self._answer([texts[i] for i in part], temperature, max_new_tokens), strict=True
            ):
                answers[index] = answer
            if self._progress is not None:
                self._progress(start + len(part), len(order))
        return [answers[i * n : (i + 1) * n] for i in range(len(prompts))]

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _answer(self, texts: list[str], temperature: float, max_new_tokens: int) -> list[str]:
        import torch

        # A chat template writes its special tokens itself.
        special = self.tokenizer.chat_template is None
        encoded = self.tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=special
        ).to(self._device)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            output = self._model.generate(
                **encoded,
                max_new_tokens=max_new_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
                eos_token_id=self.tokenizer.eos_token_id,
                **sampling,
            )
        return self.tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; it pads with its end token where it has no other.

    Raises:
        PolicyError: There is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"cannot load a tokenizer from {model}: {error}; name a folder in Hugging Face's format "
            "or a model on its hub"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def as_chat(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """Return a prompt as the model's chat template has it, or as it is where there is none."""
    if tokenizer.chat_template is None:
        return prompt
    chat = tokenizer.apply_chat_template(as_messages(prompt), tokenize=False, add_generation_prompt=True)
    assert isinstance(chat, str)
    return chat


def tokens_of(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> int:
    """Return how many tokens TRL's SFTTrainer makes of a prompt and its answer, end token included."""
    if tokenizer.chat_template is None:
        return len(tokenizer(prompt + answer + str(tokenizer.eos_token))["input_ids"])
    talk = [*as_messages(prompt), {"role": "assistant", "content": answer}]
    chat = tokenizer.apply_chat_template(talk, tokenize=False)
    assert isinstance(chat, str)
    return len(tokenizer(chat, add_special_tokens=False)["input_ids"])


def as_messages(prompt: str) -> list[dict[str, str]]:
    """Return a prompt as a conversation of one message."""
    return [{"role": "user", "content": prompt}]
