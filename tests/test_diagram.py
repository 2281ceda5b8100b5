"""The diagram's files match the output of its script."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import diagram


def test_the_committed_drawings_are_those_of_the_script(repository: Path) -> None:
    files = diagram.files()
    assert sorted(path.name for path in files) == ["overview-dark.svg", "overview-light.svg"]
    for path, text in files.items():
        assert path.read_text() == text, "run `uv run scripts/diagram.py`"
    assert {path.name for path in (repository / "docs" / "diagrams").iterdir()} == {path.name for path in files}


def test_all_that_is_drawn_lies_within_the_drawing() -> None:
    for text in diagram.files().values():
        root = ElementTree.fromstring(text)
        for one in root.iter("{http://www.w3.org/2000/svg}rect"):
            x, y, width, height = (float(one.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x < x + width <= diagram.WIDTH
            assert 20 <= y < y + height <= 20 + diagram.HEIGHT
