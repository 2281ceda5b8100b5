"""pydantic's validation errors as part of a sentence: the field, the fault, the value."""

from __future__ import annotations

from pydantic import ValidationError

SHOWN = 60
"""Maximum number of characters of a value in a message."""


def fault_text(error: ValidationError) -> str:
    """Return the first fault, and the number of others, as part of a sentence.

    >>> from pydantic import TypeAdapter
    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_json('{"level": "high"}')
    ... except ValidationError as error:
    ...     print(fault_text(error))
    level: Input should be a valid integer, unable to parse string as an integer, got 'high'
    """
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more faults)" if error.error_count() > 1 else ""
    if first["type"] == "missing":
        return f"{field} is missing{more}"
    # pydantic's messages of these two types name our classes.
    fault = "expected an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    return f"{field}: {fault}, got {_cut(first['input'])}{more}" if field else f"{fault}, got {_cut(first['input'])}"


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
