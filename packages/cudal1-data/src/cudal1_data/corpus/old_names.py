"""Field names and values in pairs of earlier versions, and their present names."""

from __future__ import annotations

from typing import Any, cast

OLD_FIELDS = {"writing": "backend"}
"""Present field name by old name."""

_MUTANT = "spoilt: "
"""Old prefix of a failure's template."""


def renamed(pair: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a pair under their present names.

    >>> renamed({"writing": "triton", "label": "right", "template": "turned"})
    {'backend': 'triton', 'label': 'correct', 'template': 'transposed'}
    >>> renamed({"template": "spoilt: zeros", "parameters": {"rows": 4, "turned": 1}})
    {'template': 'mutant: zeros', 'parameters': {'rows': 4, 'transposed': 1}}
    """
    new = {OLD_FIELDS.get(name, name): value for name, value in pair.items()}
    if new.get("label") == "right":
        new["label"] = "correct"
    template, parameters = new.get("template"), new.get("parameters")
    if template == "turned":
        new["template"] = "transposed"
    elif isinstance(template, str) and template.startswith(_MUTANT):
        new["template"] = "mutant: " + template.removeprefix(_MUTANT)
    if isinstance(parameters, dict) and "turned" in parameters:
        values = cast("dict[str, object]", parameters)
        new["parameters"] = {"transposed" if name == "turned" else name: value for name, value in values.items()}
    return new
