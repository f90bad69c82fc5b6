"""Make the pictures of README: the run page, the token view, and the learning curve with its interval.

    python scripts/pictures.py --chromium /usr/bin/chromium [--run runs/quickstart] [-o docs/pictures]

Without `--run` it first runs `hone quickstart recipes/quickstart.toml` (minutes). The pages are those that
`hone view` shows, in a Chromium that Playwright drives (`pip install playwright`; no browser is downloaded).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.view.browser import FLAGS, hone_view

ROOT = Path(__file__).resolve().parents[1]
HONE = Path(sys.executable).with_name("hone")
SIZE = {"width": 1360, "height": 860}
CURVE = "figure.chart:has(h3:text-is('Resolve rate'))"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--run", type=Path, help="a finished training; default: a new quickstart")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = options.run or quickstart(Path(folder) / "quickstart")
        with hone_view(run) as server:
            take(server, options.chromium, Path(folder) / "profile", options.out)


def quickstart(run: Path) -> Path:
    recipe = ROOT / "recipes" / "quickstart.toml"
    subprocess.run([HONE, "quickstart", recipe, "--set", f"run_dir={run}"], check=True)
    return run


def take(server: str, chromium: str, profile: Path, out: Path) -> None:
    """Write run-light.png, run-dark.png, tokens.png and curve.png into `out`."""
    name = next(
        line["name"] for line in ask(f"{server}/api/runs") if line["kind"] == "training" and line["rollouts"]
    )
    rollout = telling_rollout(server, name)
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=FLAGS, viewport=SIZE, device_scale_factor=1.5
        )
        page = context.new_page()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.goto(f"{server}/runs/{name}")
            page.screenshot(path=out / f"run-{theme}.png")
        page.emulate_media(color_scheme="light")
        page.goto(f"{server}/runs/{name}")
        page.locator(CURVE).first.screenshot(path=out / "curve.png")
        page.set_viewport_size({"width": 1360, "height": 800})
        page.goto(f"{server}/runs/{name}/rollouts/{rollout}/tokens")
        page.wait_for_selector("#nodes[data-ready] .node.sampled .t")
        page.click("#fold")  # of rendered nodes, so that the sampled ones stand together
        page.locator(".node.sampled .t:is(.q3, .q4, .q5)").first.hover()
        page.screenshot(path=out / "tokens.png")
        context.close()


def telling_rollout(server: str, name: str) -> str:
    """Return the directory of the long rollout that hesitated most."""
    while not (table := ask(f"{server}/api/runs/{name}/rollouts?sort=-sampled_tokens"))["complete"]:
        pass  # each request reads more of the stored files
    stored = [row["directory"] for row in table["rows"][:12] if row["directory"]]
    return max(stored, key=lambda directory: hesitation(server, name, directory))


def hesitation(server: str, name: str, directory: str) -> float:
    """Return the sum of the negated log-probabilities of a rollout's tokens."""
    nodes = ask(f"{server}/api/runs/{name}/rollouts/{directory}/tokens")["nodes"]
    return -sum(value or 0.0 for node in nodes for value in node["logprobs"])


def ask(address: str) -> Any:
    with urllib.request.urlopen(address) as answer:  # noqa: S310 - of the server that this script started
        return json.load(answer)


if __name__ == "__main__":
    main()
