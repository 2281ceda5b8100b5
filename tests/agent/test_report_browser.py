"""The report in a real browser: nothing overflows, runs or is fetched, and the keyboard reaches everything.

Needs Chromium (`apt-get install chromium`); `.ci/run` installs it where it can.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cudal1_agent.reporting.page import report
from report import make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMPARISON = "comparison.html"
WIDTHS = (400, 1280)
THEMES = ("light", "dark")

MEASURE = """<!doctype html><body><script>
const measured = [];
const luminance = (colour) => {
  const [r, g, b] = colour.match(/[0-9.]+/g).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
function measure(frame, theme) {
  const page = frame.contentDocument, at = (one) => frame.contentWindow.getComputedStyle(one);
  if (theme) page.getElementById("theme-" + theme).checked = true;
  const folded = [...page.querySelectorAll("details.task")].at(-1), anchor = folded.querySelector("[id]").id;
  frame.contentWindow.location.hash = anchor;
  const reached = folded.open;
  page.querySelectorAll("details").forEach((one) => one.open = true);
  const background = at(page.body).backgroundColor;
  const focusable = [...page.querySelectorAll("a[href], input, summary, [tabindex]")];
  const scrolls = [...page.querySelectorAll("pre, .scroll")].filter((one) => one.scrollWidth > one.clientWidth);
  return {
    width: frame.clientWidth, theme, background, reached,
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    contrast: Math.min(...["p", ".note", "a", "h1", "summary"].map(
      (one) => contrast(at(page.querySelector("main " + one)).color, background))),
    first: focusable[0].className, positive: focusable.filter((one) => one.tabIndex > 0).length,
    unreachable: scrolls.filter((one) => one.tabIndex < 0).length, scrolls: scrolls.length,
  };
}
addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) measured.push(measure(frame, frame.dataset.theme));
  document.body.textContent = JSON.stringify(measured);
});
</script>FRAMES</body>"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(BROWSERS)}); install it with: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    for name in ("run", "other"):
        make_run(folder / name, variants=120, tasks=6)
    report(folder / "run", folder / "other", out=folder / COMPARISON)
    return report(folder / "run", out=folder / "report.html")


def opened(browser: str, path: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's DOM after it has loaded, and what the browser wrote to its console."""
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--dump-dom",
            "--virtual-time-budget=5000",
            f"--user-data-dir={path.parent / 'profile'}",
            *flags,
            path.resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def measured(browser: str, frames: Sequence[tuple[Path, int, str]], *flags: str) -> list[dict[str, Any]]:
    """What a browser says of pages at a width and in a theme."""
    wrapper = frames[0][0].with_name("measure.html")
    drawn = "".join(
        f'<iframe src="{page.name}" width="{width}" height="900" style="border:0" data-theme="{theme}"></iframe>'
        for page, width, theme in frames
    )
    wrapper.write_text(MEASURE.replace("FRAMES", drawn))
    dom, console = opened(browser, wrapper, *flags)
    assert console == []
    body = re.search(r"<body>(.*?)</body>", dom, re.DOTALL)
    assert body is not None
    return json.loads(html.unescape(body.group(1)))


def test_nothing_overflows_in_any_theme_and_the_keyboard_reaches_all(browser: str, page: Path) -> None:
    frames = [(one, *how) for one in (page, page.with_name(COMPARISON)) for how in product(WIDTHS, THEMES)]
    found = measured(browser, frames)
    assert [(one["width"], one["theme"]) for one in found] == [(width, theme) for _, width, theme in frames]
    for one in found:
        assert one["overflow"] == 0, one
        assert one["contrast"] >= 4.5, one
        assert one["reached"], "a link to a folded program unfolds it"
        assert one["first"] == "skip"
        assert one["positive"] == 0, "the focus follows the text"
        assert one["scrolls"] > 0
        assert one["unreachable"] == 0, "what scrolls can be focused"
    assert len({one["background"] for one in found}) == 2


def test_the_theme_follows_the_system_unless_it_is_chosen(browser: str, page: Path) -> None:
    flag = "--blink-settings=preferredColorScheme=0"
    found = measured(browser, [(page, 400, ""), (page, 400, "light"), (page, 400, "dark")], flag)
    dark, light = "rgb(13, 17, 23)", "rgb(255, 255, 255)"
    assert [one["background"] for one in found] == [dark, light, dark]


def test_what_escaped_all_escaping_would_still_be_inert(browser: str, page: Path) -> None:
    attack = (
        "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
        "<style>body { display: none }</style><link rel=stylesheet href=http://127.0.0.1:9/x.css>"
    )
    attacked = page.with_name("attacked.html")
    attacked.write_text(page.read_text().replace("<h1>", attack + "<h1>"))
    dom, console = opened(browser, attacked)
    assert "<title>cudal1: run</title>" in dom
    assert sum("Content Security Policy" in line for line in console) >= 4


def test_a_page_of_hostile_text_writes_nothing_to_the_console(browser: str, page: Path) -> None:
    dom, console = opened(browser, page)
    assert console == []
    assert "<title>cudal1: run</title>" in dom
