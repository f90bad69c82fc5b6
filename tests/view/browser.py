"""A real browser on the pages of `hone view`: faults of pages, accessibility, screenshots.

HONE_TEST_CHROMIUM names the browser, HONE_TEST_AXE the file axe.min.js of the npm package axe-core 4, and
HONE_TEST_SCREENSHOTS, where it is set, the directory that keeps the screenshots.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SEVERE = ("serious", "critical")
REPOSITORY = Path(__file__).parents[2]


def named_file(variable: str) -> Path:
    """Return the file that an environment variable names; skip the test without one."""
    value = os.environ.get(variable, "")
    if not value or not Path(value).is_file():
        pytest.skip(f"{variable} names no file")
    return Path(value)


@contextlib.contextmanager
def hone_view(*arguments: str | Path) -> Iterator[str]:
    """Run `hone view` on a free port; yield its address."""
    command = [Path(sys.executable).with_name("hone"), "view", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            yield found[0]
        finally:
            server.terminate()
            server.wait()


def ask(address: str) -> Any:
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)


@dataclass
class Visitor:
    """A page of a browser that collects what goes wrong."""

    page: Any
    axe: str
    screenshots: Path
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on(
            "console", lambda said: said.type == "error" and self.faults.append(f"console: {said.text}")
        )
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))
        self.page.on(
            "response",
            lambda answer: answer.status >= 400 and self.faults.append(f"{answer.status}: {answer.url}"),
        )

    def visit(self, address: str, name: str) -> None:
        """Open a page in both themes; record severe faults of accessibility, keep a screenshot of each."""
        self.page.goto(address, wait_until="load")
        for theme in ("light", "dark"):
            self.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            self.page.evaluate(self.axe)
            found = self.page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
            self.faults += [
                f"{name}, {theme}: {fault['impact']} {fault['id']}: {fault['nodes'][0]['html'][:200]}"
                for fault in found["violations"]
                if fault["impact"] in SEVERE
            ]
            self.page.screenshot(path=self.screenshots / f"{name}-{theme}.png", full_page=True)


@contextlib.contextmanager
def visitor(folder: Path) -> Iterator[Visitor]:
    """Yield a visitor with a fresh profile. Skip where the browser or its driver is missing."""
    driver = pytest.importorskip("playwright.sync_api")
    chromium, axe = named_file("HONE_TEST_CHROMIUM"), named_file("HONE_TEST_AXE")
    screenshots = Path(os.environ.get("HONE_TEST_SCREENSHOTS") or folder / "screenshots")
    screenshots.mkdir(parents=True, exist_ok=True)
    with driver.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=chromium,
            headless=True,
            viewport={"width": 1440, "height": 900},
            args=FLAGS,
        )
        context.set_default_timeout(120_000)
        yield Visitor(page=context.new_page(), axe=axe.read_text(), screenshots=screenshots)
        context.close()


def addresses(server: str, run: str, rollout: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Return (name, address) of every kind of page about a run and one of its rollouts."""
    quote = urllib.parse.quote
    base = f"{server}/runs/{quote(run, safe='')}"
    directory = quote(rollout["directory"], safe="")
    return (
        ("runs", f"{server}/"),
        ("run", base),
        ("rollouts", f"{base}/rollouts?sort=-reward"),
        ("rollout", f"{base}/rollouts/{directory}"),
        ("tokens", f"{base}/rollouts/{directory}/tokens"),
        ("group", f"{base}/groups/{quote(rollout['group_id'], safe='')}"),
        ("task", f"{base}/tasks/{quote(rollout['task_id'], safe='')}"),
    )
