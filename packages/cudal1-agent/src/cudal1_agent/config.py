"""Settings of a run from config files and flags: precedence, error messages, differences between two runs."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cudal1_data.suggest import did_you_mean
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cudal1_agent.errors import ConfigError
from cudal1_agent.settings import Settings, Table, with_current_names

PRETRAINED: Table = {
    "prompt": {"max_tokens": 6144},
    "sft": {
        "trl": {
            "max_steps": 200,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-5,
            "lr_scheduler_type": "cosine",
            "adam_beta2": 0.999,
            "max_length": 8192,
        }
    },
    "self_train": {
        "samples": 8,
        "trl": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": 1e-5,
            "adam_beta2": 0.999,
            "max_length": 8192,
        },
    },
    "contrast": {
        "plain_share": 0.0,
        "trl": {
            "max_steps": 200,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 4,
            "max_completion_length": 2048,
            "learning_rate": 1e-6,
            "adam_beta2": 0.999,
            "beta": 0.01,
            "temperature": 1.0,
        },
    },
    "evaluation": {"exemplars": True, "max_new_tokens": 2048},
    "policy": {"batch": 64},
}
"""Changed defaults for a pretrained language model (`--model`).

configs/pretrained.toml of the source repository lists them.
"""


def load_settings(config: Path | Sequence[Path] | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a run: defaults, overridden by the config files in order, then by the flags.

    A table in a file overrides only the settings that it names. If a model is named, the defaults are those for
    pretrained models.

    Args:
        config: A TOML file, or several.
        flags: Values from the command line; None changes nothing.

    Raises:
        ConfigError: A file cannot be read, or a value is invalid.
    """
    files = [config] if isinstance(config, Path) else list(config or ())
    given = read_configs(files)
    given = merged(given, {name: value for name, value in (flags or {}).items() if value is not None})
    base = Settings().model_dump()
    if given.get("model") is not None:
        base = merged(base, PRETRAINED)
    return _checked(merged(base, given), where="".join(f"{file}: " for file in files))


def with_flags(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Return settings with some values changed; a flag that is None changes nothing.

    Raises:
        ConfigError: A value is invalid.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    return _checked(merged(settings.model_dump(), given), where="")


def _checked(values: Table, *, where: str) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        faults = faults_text(error, Settings())
        known = "config.json of a run, or configs/quickstart.toml of the source repository, lists all settings"
        raise ConfigError(f"{where}invalid settings: {faults} ({known})") from error


def read_configs(paths: Sequence[Path]) -> Table:
    """Return the merged contents of TOML files; a later file overrides an earlier one.

    Raises:
        ConfigError: A file cannot be read.
    """
    return functools.reduce(merged, map(read_config, paths), {})


def faults_text(error: ValidationError, defaults: BaseModel) -> str:
    """Return the faults of settings that have these defaults, as part of a sentence."""
    return "; ".join(_fault_text(fault, defaults) for fault in error.errors())


def _fault_text(fault: ErrorDetails, defaults: BaseModel) -> str:
    """Return the fault of one setting; for an unknown name or choice, with the nearest known one."""
    place, given = fault["loc"], fault["input"]
    where = ".".join(map(str, place))
    if fault["type"] == "literal_error" and isinstance(given, str):
        known = re.findall(r"'([^']*)'", fault["msg"])
        return f"{where}: unknown choice {given!r}; {did_you_mean(given, known)}"
    if fault["type"] != "extra_forbidden":
        return f"{where}: {fault['msg'].removeprefix('Value error, ')}"
    model: Any = defaults
    for part in place[:-1]:
        model = getattr(model, str(part), None)
    known = list(type(model).model_fields) if isinstance(model, BaseModel) else []
    return f"{where}: no such setting; {did_you_mean(str(place[-1]), known)}"


def read_config(path: Path) -> Table:
    """Return the contents of a TOML file.

    Raises:
        ConfigError: The file does not exist, or is not valid TOML.
    """
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}; name one with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return {
        name: with_current_names(cast(Table, value), name) if isinstance(value, Mapping) else value
        for name, value in config.items()
    }


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `base` overridden by `over`, table by table.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result = dict(base)
    for name, value in over.items():
        old = result.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = merged(cast(Table, old), cast(Table, value)) if both else value
    return result


def differences(stored: Settings, asked: Settings) -> list[str]:
    """Return where two settings differ, as `name: STORED in the run, ASKED requested`."""

    def leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in table.items():
            if isinstance(value, Mapping):
                found |= leaves(cast(Table, value), f"{prefix}{name}.")
            else:
                found[prefix + name] = value
        return found

    old, new = leaves(stored.model_dump(mode="json")), leaves(asked.model_dump(mode="json"))
    return [
        f"{name}: {old.get(name)!r} in the run, {new.get(name)!r} requested"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
