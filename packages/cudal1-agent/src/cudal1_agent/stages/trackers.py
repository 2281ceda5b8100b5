"""Trackers: TensorBoard, W&B and trackio beside the run's own metrics, through the callbacks of transformers.

They are what `report_to` of TRL's arguments adds. Here each is wrapped, so that a tracker that fails is dropped with a
sentence and the run goes on: a metric that is not shown elsewhere is still in the run directory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudal1_agent.errors import ConfigError
from cudal1_agent.settings import Tracker

if TYPE_CHECKING:
    from transformers import Trainer

TRACKERS = "trackers"
"""In the run directory: what trackers write to files, in a folder for each of them and each stage."""


def check_trackers(names: tuple[Tracker, ...]) -> None:
    """Check that trackers are installed.

    Raises:
        ConfigError: One is not.
    """
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"report_to names {name}, which is not installed: pip install {name}, or leave it out")


def add_trackers(
    trainer: Trainer, names: tuple[Tracker, ...], run: Path, stage: str, tell: Callable[[str], None]
) -> None:
    """Let trackers hear what a trainer logs.

    Args:
        trainer: The trainer, before it trains.
        names: The trackers.
        run: The run directory.
        stage: What the stage is called in them.
        tell: Receives a sentence when one fails.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    trainer.args.run_name = f"{run.resolve().name}-{stage}"
    for name in names:
        [kind] = get_reporting_integration_callbacks([name])

        def made(name: Tracker = name, kind: type = kind) -> Any:
            tracker = kind()
            if name == "tensorboard":
                # Its own place is among the checkpoints, which a finished stage removes.
                tracker.logging_dir = str(run / TRACKERS / name / stage)
            return tracker

        trainer.callback_handler.callbacks.append(Guarded(name, made, tell))


class Guarded:
    """A callback that is dropped when it fails for the first time."""

    def __init__(self, name: str, made: Callable[[], Any], tell: Callable[[str], None]) -> None:
        """Make it.

        Args:
            name: What it is called.
            made: Makes the callback, when the first event comes.
            tell: Receives a sentence when it fails.
        """
        self._name = name
        self._made = made
        self._tell = tell
        self._callback: Any = None
        self._failed = False

    def __getattr__(self, event: str) -> Callable[..., Any]:
        """Return what handles an event of the trainer."""

        def handle(*args: Any, **kwargs: Any) -> Any:
            if self._failed:
                return None
            try:
                if self._callback is None:
                    self._callback = self._made()
                return getattr(self._callback, event)(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - a tracker never stops a run
                self._failed = True
                self._tell(
                    f"{self._name} failed ({type(error).__name__}: {error}); the run goes on without it, and its "
                    "metrics are in the run directory"
                )
                return None

        return handle
