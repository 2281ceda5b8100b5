"""The policy protocol, through which stages and evaluations get answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """Generator of answers to prompts."""

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt.

        Args:
            prompts: Texts as `build_prompt` makes them; the policy applies the chat template.
            n: Answers per prompt.
            temperature: Sampling temperature; 0 is greedy.
            max_new_tokens: Longest answer in tokens.
            seed: Seed of the sampling, if the backend supports one.

        Raises:
            PolicyError: The model or the endpoint failed.
        """
        ...

    def close(self) -> None:
        """Release the policy's resources."""
        ...
