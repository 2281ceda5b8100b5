"""The judge of a run, by its settings: this machine's, or a service."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cudal1_data import Device
from cudal1_env import Archive
from cudal1_env.hardware import resolve_device
from pydantic import ValidationError

from cudal1_agent.config import faults_text
from cudal1_agent.errors import ConfigError
from cudal1_agent.settings import Settings

if TYPE_CHECKING:
    from cudal1_env.judge import Judge, JudgeSettings
    from cudal1_env.remote import RemoteEvaluator


def make_judge(settings: Settings) -> Judge | RemoteEvaluator:
    """Start this machine's judge, or a client of the service that the settings name.

    Raises:
        ConfigError: The table `judge` of the settings is invalid, or the settings name another device than the
            service's.
        SettingsError: This machine or the service cannot do what the settings ask.
        MachineError: The service cannot be reached.
    """
    from cudal1_env.gate import find_audit
    from cudal1_env.judge import Judge

    audit = find_audit("auto", settings.suite, program_device(settings))
    judge = _service(settings) if settings.judge_url else Judge(judge_settings(settings))
    if audit is not None:
        judge.learn(audit)
    return judge


def judge_settings(settings: Settings) -> JudgeSettings:
    """Return the settings of this machine's judge.

    Raises:
        ConfigError: The table `judge` of the settings is invalid.
    """
    from cudal1_env.judge import JudgeSettings

    try:
        return JudgeSettings.model_validate({"device": settings.device, **settings.judge})
    except ValidationError as error:
        raise ConfigError(f"invalid settings in the table [judge]: {faults_text(error, JudgeSettings())}") from error


def program_device(settings: Settings) -> Device:
    """Return the kind of device on which programs run.

    Raises:
        ConfigError: The settings name another device than the service's.
        MachineError: The service cannot be reached.
    """
    if not settings.judge_url:
        return resolve_device(settings.device)
    with closing(_service(settings)) as service:
        found = service.device
    if settings.device not in ("auto", found):
        raise ConfigError(
            f"device = {settings.device!r}, but {settings.judge_url} judges on {found}; use device = 'auto'"
        )
    return found


def _service(settings: Settings) -> RemoteEvaluator:
    from cudal1_env.remote import RemoteEvaluator

    if settings.judge:
        raise ConfigError("judge_url and the table [judge] exclude each other; give these settings to cudal1-env serve")
    return RemoteEvaluator(settings.judge_url)


def close_judge(judge: Judge | RemoteEvaluator, archive: Archive) -> None:
    """Write the seeds of the judge's inputs into the archive, then stop the judge."""
    with closing(judge):
        retire_inputs(judge, archive)


def retire_inputs(judge: Judge | RemoteEvaluator, archive: Archive) -> None:
    """Make the judge draw new inputs for every task from now on; write the seeds of the old ones into the archive."""
    for commitment, seed in judge.retire().items():
        archive.disclose(commitment, seed)


def stays_on_cpu(settings: Settings) -> bool:
    """Return whether the policy stays on the CPU: the settings say so, or there is no GPU."""
    import torch

    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda', but this machine has no CUDA device; use --device cpu or auto")
    return settings.device == "cpu" or not torch.cuda.is_available()
