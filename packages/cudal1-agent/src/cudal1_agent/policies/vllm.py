"""A local model through vLLM's offline engine, on one or more GPUs. Needs the extra `cudal1-agent[vllm]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cudal1_agent.errors import PolicyError
from cudal1_agent.policies.transformers import NO_CHAT, as_chat, end_tokens, load_tokenizer


class VllmPolicy:
    """A causal language model in vLLM."""

    def __init__(
        self, model: str | Path, *, engine: Mapping[str, Any] | None = None, chat: Mapping[str, Any] = NO_CHAT
    ) -> None:
        """Start the engine.

        Args:
            model: Folder or hub name.
            engine: Further arguments of `vllm.LLM`, unchanged.
            chat: Further arguments of the chat template.

        Raises:
            PolicyError: vLLM is not installed, or cannot start.
        """
        if find_spec("vllm") is None:
            raise PolicyError(
                "the package vllm (extra cudal1-agent[vllm]) is not installed; install it with "
                "`pip install 'vllm>=0.31,<0.32'` (it needs an NVIDIA GPU), or use the policy `transformers`"
            )
        from vllm import LLM  # pyright: ignore[reportMissingImports]  # an extra

        self.tokenizer = load_tokenizer(model)
        self._chat = chat
        try:
            self._engine: Any = LLM(model=str(model), **(engine or {}))
        except (RuntimeError, ValueError, OSError) as error:
            raise PolicyError(f"vLLM cannot start with {model}: {error}") from error

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt; see `Policy`."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # an extra

        parameters = SamplingParams(
            n=n,
            temperature=temperature,
            max_tokens=max_new_tokens,
            seed=seed,
            stop_token_ids=end_tokens(self.tokenizer),
        )
        outputs = self._engine.generate([as_chat(self.tokenizer, prompt, self._chat) for prompt in prompts], parameters)
        return [[choice.text for choice in output.outputs] for output in outputs]

    def close(self) -> None:
        """Release the engine; its processes end with it."""
        self._engine = None
