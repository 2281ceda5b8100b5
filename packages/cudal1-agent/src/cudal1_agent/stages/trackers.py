"""Trackers: TensorBoard, W&B and trackio in addition to the run's metrics, through the callbacks of transformers.

`report_to` of TRL's arguments adds the same callbacks. Here each is wrapped: a tracker that fails is dropped with a
message, and the run continues, because the run directory has all metrics.
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
"""Folder of the run directory for files of trackers, with a folder for each tracker and stage."""


def check_trackers(names: tuple[Tracker, ...]) -> None:
    """Check that trackers are installed.

    Raises:
        ConfigError: A tracker is not installed.
    """
    for name in names:
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of earlier runs in the current one is no package
            raise ConfigError(f"report_to names {name}, which is not installed: pip install {name}, or leave it out")


def add_trackers(
    trainer: Trainer, names: tuple[Tracker, ...], run: Path, stage: str, tell: Callable[[str], None]
) -> None:
    """Send a trainer's log to trackers.

    Args:
        trainer: The trainer, before it trains.
        names: The trackers.
        run: The run directory.
        stage: Name of the stage in the trackers.
        tell: Receives a message when a tracker fails.
    """
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    trainer.args.run_name = f"{run.resolve().name}-{stage}"
    for name in names:
        [kind] = get_reporting_integration_callbacks([name])

        def made(name: Tracker = name, kind: type = kind) -> Any:
            tracker = kind()
            if name == "tensorboard":
                # The default folder is among the checkpoints, which a finished stage removes.
                tracker.logging_dir = str(run / TRACKERS / name / stage)
            return tracker

        trainer.callback_handler.callbacks.append(Guarded(name, made, tell))


class Guarded:
    """A callback that is dropped at its first failure."""

    def __init__(self, name: str, made: Callable[[], Any], tell: Callable[[str], None]) -> None:
        """Wrap a callback.

        Args:
            name: Name of the tracker.
            made: Makes the callback, at the first event.
            tell: Receives a message when it fails.
        """
        self._name = name
        self._made = made
        self._tell = tell
        self._callback: Any = None
        self._failed = False

    def __getattr__(self, event: str) -> Callable[..., Any]:
        """Return the handler of an event of the trainer."""

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
                    f"{self._name} failed ({type(error).__name__}: {error}); the run continues without it, and its "
                    "metrics are in the run directory"
                )
                return None

        return handle
