"""Hooks of the site's build (mkdocs.yml): generated pages, notebooks, links out of the folder `docs`.

uv run --group docs mkdocs build --strict     build into site/
uv run --group docs mkdocs serve              the same, again after each change
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
import reference

if TYPE_CHECKING:
    # In the dependency group `docs`.
    from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
    from mkdocs.structure.files import Files  # pyright: ignore[reportMissingImports]
    from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?:(console) run|record \S+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages generated from the code, and a page for each notebook."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    texts = reference.pages()
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        texts[f"notebooks/{path.stem}.md"] = notebook_page(json.loads(path.read_text()), path.name)
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drop test markers from fences, and the targets of links out of the folder `docs`."""
    plain = FENCE.sub(lambda fence: f"```{fence[1] or 'text'}", markdown)
    return inner_links(plain, page.file.src_uri)


def inner_links(markdown: str, page: str) -> str:
    """Return a page without the targets of links out of the folder `docs`; their text stays.

    >>> inner_links("[a](../README.md), [b](log.md) and [c](../log.md)", "decisions/001.md")
    'a, [b](log.md) and [c](../log.md)'
    >>> inner_links("[a](../README.md)", "log.md")
    'a'
    """

    def kept(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        if "://" in target or not target:
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        return match[1] if place.startswith("../") or place == "README.md" else match[0]

    return LINK.sub(kept, markdown)


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown: its texts, code and outputs."""
    parts: list[str] = []
    for one in notebook["cells"]:
        source = "".join(one["source"])
        if one["cell_type"] == "markdown":
            parts.append(source)
        elif source:
            parts.append(f"```python\n{source}\n```")
            printed = "".join("".join(output.get("text", ())) for output in one["outputs"])
            if printed:
                parts.append(f"```text\n{printed.rstrip()}\n```")
    parts.append(f"[Download the notebook]({name})")
    return "\n\n".join(parts) + "\n"
