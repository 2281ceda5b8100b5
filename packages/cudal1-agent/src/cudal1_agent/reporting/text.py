"""Untrusted text for a page or a terminal: invisible characters are spelled out, and long text is cut."""

from __future__ import annotations

import re

MAX_LINE = 400
"""Maximum number of characters of a line that are shown."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
"""Control characters except tab and line feed, marks of direction and width, and halves of surrogate pairs."""


def visible(text: str) -> str:
    r"""Return a text with invisible and control characters spelled out.

    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    return _UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def short(text: str, length: int = MAX_LINE) -> str:
    """Return the beginning of a text, and how much is left out.

    >>> short("abcdef", 4)
    'abcd... (2 more characters)'
    """
    return text if len(text) <= length else f"{text[:length]}... ({len(text) - length} more characters)"
