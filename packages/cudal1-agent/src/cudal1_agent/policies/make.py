"""From the settings of a run to the policy that writes its answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cudal1_agent import gpu_memory
from cudal1_agent.errors import PolicyError
from cudal1_agent.policies.base import Policy
from cudal1_agent.policies.openai import OpenAIPolicy
from cudal1_agent.policies.transformers import TransformersPolicy
from cudal1_agent.policies.vllm import VllmPolicy
from cudal1_agent.settings import PolicySettings


def make_policy(
    model: str | Path,
    settings: PolicySettings,
    *,
    use_cpu: bool,
    progress: Callable[[int, int], None] | None = None,
    written: Callable[[int], None] = lambda _: None,
) -> Policy:
    """Return the policy that the settings name.

    Args:
        model: Folder or hub name of the model. An endpoint of backend `openai` serves `settings.name` instead.
        settings: How answers are generated.
        use_cpu: Stay on the CPU even if there is a GPU.
        progress: Receives the number of answers so far and the total, unless vLLM runs in this process.
        written: Receives numbers of generated tokens; only `transformers` reports them.

    Raises:
        PolicyError: There is no such model, or its backend cannot be used.
    """
    gpu_memory.release()  # the model of an earlier stage
    match settings.backend:
        case "transformers":
            return TransformersPolicy(
                model,
                use_cpu=use_cpu,
                batch=settings.batch,
                batching=settings.batching,
                chat=settings.chat,
                progress=progress,
                written=written,
            )
        case "vllm" if settings.url is None:
            return VllmPolicy(model, engine=settings.engine, chat=settings.chat)
        case "vllm" | "openai":
            return _endpoint(model, settings, progress)


def _endpoint(model: str | Path, settings: PolicySettings, progress: Callable[[int, int], None] | None) -> OpenAIPolicy:
    assert settings.url is not None
    name = settings.name or str(model)
    extra = {"chat_template_kwargs": settings.chat} if settings.chat else None
    policy = OpenAIPolicy(name, url=settings.url, parallel=settings.batch, extra=extra, progress=progress)
    if settings.backend == "vllm" and str(model) not in (served := policy.served()):
        policy.close()
        raise PolicyError(
            f"the vLLM server at {settings.url} serves {', '.join(served) or 'nothing'}, not the model that "
            f"is to answer; start it with: vllm serve {model} --served-model-name {name}"
        )
    return policy
