"""Generated tasks as a suite."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cudal1_data.generator import Request, parse_name, parse_request
from cudal1_data.suite import Suite
from cudal1_data.task import Device, Task


def load_generated(spec: str, device: Device) -> Suite:
    """Generate the tasks of a request at the default sizes for `device`.

    Args:
        spec: `generated`, optionally followed by `:FAMILIES` and `?OPTIONS`.
        device: Device whose sizes to use.

    Raises:
        UnknownSuiteError: A family or option is unknown; the message lists the known ones.
    """
    request = parse_request(spec.removeprefix("generated").removeprefix(":"))
    return Suite(spec, (task.on(device) for task in _made(request.model_dump_json())))


def load_named(names: Sequence[str], device: Device) -> Suite:
    """Generate single tasks by the ends of their ids (`softmax-7-12`).

    Raises:
        UnknownTaskError: A name is unknown.
    """
    return Suite("generated", (parse_name(name).on(device) for name in names))


@functools.lru_cache(maxsize=4)
def _made(request: str) -> tuple[Task, ...]:
    """Generate the tasks of a request once per process: an environment needs them at each reset."""
    return tuple(Request.model_validate_json(request).tasks())
