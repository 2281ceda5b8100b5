"""The policy protocol: what stages and evaluations ask for answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """Writes answers to prompts."""

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt.

        Args:
            prompts: Texts as `build_prompt` makes them; a chat template is the policy's own affair.
            n: Answers for each.
            temperature: 0 takes the likeliest token each time.
            max_new_tokens: Longest answer.
            seed: Decides the answers together with the prompts, where the backend allows it.

        Raises:
            PolicyError: The model or the endpoint failed.
        """
        ...

    def close(self) -> None:
        """Free what the policy holds."""
        ...
