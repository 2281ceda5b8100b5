"""Policy for endpoints with OpenAI's chat API: a vLLM server, a gateway, a hosted model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

import httpx
from pydantic import BaseModel, Field, ValidationError

from cudal1_agent.errors import PolicyError

_BUSY = frozenset({408, 409, 429, 500, 502, 503, 504})
"""HTTP status codes after which a request is tried again."""


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class _Served(BaseModel):
    id: str
    root: str | None = None


class _Models(BaseModel):
    data: list[_Served]


class OpenAIPolicy:
    """A model behind an HTTP endpoint."""

    def __init__(
        self,
        model: str,
        *,
        url: str,
        key: str | None = None,
        parallel: int = 16,
        timeout_s: float = 600.0,
        attempts: int = 5,
        pause_s: float = 2.0,
        extra: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open the client.

        Args:
            model: Name of the model at the endpoint.
            url: Address including the version, such as `http://localhost:8000/v1`.
            key: Bearer token; None takes it from the environment variable OPENAI_API_KEY, if set.
            parallel: Concurrent requests.
            timeout_s: Longest wait for one answer.
            attempts: Maximum number of attempts per request.
            pause_s: Wait before the second attempt; it doubles each time.
            extra: Further fields of each request, such as vLLM's `chat_template_kwargs`.
            progress: Receives the number of answers so far and the total.
        """
        token = key if key is not None else os.environ.get("OPENAI_API_KEY")
        self._client = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
        )
        self._model = model
        self._parallel = parallel
        self._attempts = attempts
        self._pause_s = pause_s
        self._extra = dict(extra or {})
        self._progress = progress

    def sample(
        self, prompts: Sequence[str], n: int, *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[list[str]]:
        """Return `n` answers to each prompt, with one request per answer; see `Policy`.

        Each request has another seed, so that answers differ; a server may ignore it.
        """
        requests = [
            {
                "model": self._model,
                "messages": [{"role": "user", "content": prompt}],
                "temperature": temperature,
                "max_tokens": max_new_tokens,
                "seed": seed + number,
                **self._extra,
            }
            for prompt in prompts
            for number in range(n)
        ]
        answers: list[str] = []
        # Its threads are daemons. Python waits for those of an executor when it exits, until the server's time limit.
        with ThreadPool(self._parallel) as pool:
            for answer in pool.imap(self._ask, requests):
                answers.append(answer)
                if self._progress is not None:
                    self._progress(len(answers), len(requests))
        return [answers[i * n : (i + 1) * n] for i in range(len(prompts))]

    def served(self) -> list[str]:
        """Return the names of the models at the endpoint, and of the folders that they were loaded from.

        Raises:
            PolicyError: The endpoint does not list its models.
        """
        try:
            response = self._client.get("/models")
            response.raise_for_status()
            models = _Models.model_validate_json(response.content).data
        except (httpx.HTTPError, ValidationError) as error:
            raise PolicyError(
                f"{self._client.base_url} does not say which models it serves: {error}; check the address (with its "
                "version, as in http://localhost:8000/v1)"
            ) from error
        return [name for one in models for name in (one.id, one.root) if name is not None]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, request: dict[str, object]) -> str:
        fault = "nothing"
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                response = self._client.post("/chat/completions", json=request)
            except httpx.TransportError as error:
                fault = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == httpx.codes.OK:
                    return self._text(response)
                fault = f"status {response.status_code}: {response.text[:300]}"
                if response.status_code not in _BUSY:
                    break
        raise PolicyError(
            f"{self._client.base_url} gave no answer of the model {self._model}: {fault}; "
            "check the address (with its version, as in http://localhost:8000/v1), the key and the model's name"
        )

    def _text(self, response: httpx.Response) -> str:
        try:
            return _Completion.model_validate_json(response.content).choices[0].message.content or ""
        except ValidationError as error:
            raise PolicyError(
                f"{self._client.base_url} sent no chat completion but {response.text[:300]!r}; "
                "check that it speaks OpenAI's protocol"
            ) from error
