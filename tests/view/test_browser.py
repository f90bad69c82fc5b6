"""A browser reads every page of a real training, while it runs and afterwards; see `tests.view.browser`."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.view.library import Library
from hone.view.web.export import export
from tests.e2e.small_run import HONE, RECIPE, REPOSITORY, sets
from tests.view.browser import addresses, ask, hone_view, named_file, visitor
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.timeout(3600)]
LIMIT_S = 1500.0  # of a stage of the quickstart on a busy machine


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A small quickstart that runs while the first test reads its pages; its run directory is in `args`."""
    pytest.importorskip("playwright.sync_api")
    named_file("HONE_TEST_CHROMIUM")
    run = tmp_path_factory.mktemp("quickstart") / "run"
    command = [str(HONE), "quickstart", str(RECIPE), *sets(run, train__steps=12, train__max_idle_steps=100)]
    with (run.parent / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY)
        yield running
        running.kill()
        running.wait()


@pytest.fixture(scope="module")
def run_dir(quickstart: subprocess.Popen[str]) -> Path:
    arguments = quickstart.args
    assert isinstance(arguments, list)
    return Path(next(str(word) for word in arguments if str(word).startswith("run_dir=")).partition("=")[2])


def training(server: str, *, state: str) -> dict[str, Any] | None:
    """Return the training with rollouts that is in a state and has finished a step."""
    lines = [each for each in ask(f"{server}/api/runs") if each["kind"] == "training" and each["rollouts"]]
    return next((each for each in lines if each["state"] == state and each["step"]), None)


def stored_rollout(server: str, run: str) -> dict[str, Any]:
    """Return a row of the table whose files are stored, a graded one where there is one."""
    rows = ask(f"{server}/api/runs/{run}/rollouts?sort=-step")["rows"]
    stored = [row for row in rows if row["directory"] and row["turns"]]
    return next((row for row in stored if row["outcome"] in ("resolved", "unresolved")), stored[0])


def test_pages_of_a_running_training_are_sound_and_follow_it(
    quickstart: subprocess.Popen[str], run_dir: Path, tmp_path: Path
):
    run_dir.mkdir(parents=True, exist_ok=True)
    with hone_view(run_dir) as server, visitor(tmp_path) as reader:
        wait_until(
            lambda: training(server, state="running") or quickstart.poll() is not None,
            (run_dir.parent / "log").read_text,
            limit_s=LIMIT_S,
        )
        line = training(server, state="running")
        assert line is not None, "the training ended before a page was read"
        rollout = stored_rollout(server, line["name"])
        quickstart.send_signal(signal.SIGSTOP)  # it waits, so that it cannot end while the pages are read
        try:
            for name, address in addresses(server, line["name"], rollout):
                reader.visit(address, f"live-{name}")
            reader.page.goto(f"{server}/runs/{line['name']}")
            before = reader.page.inner_text("[data-part=cards]")
            reader.page.evaluate("scrollTo(0, 400)")
        finally:
            quickstart.send_signal(signal.SIGCONT)
        reader.page.wait_for_function(
            "before => document.querySelector('[data-part=cards]').innerText !== before", arg=before
        )
        assert reader.page.evaluate("scrollY") == 400
        reader.page.wait_for_function(
            "() => document.querySelector('.livedot').textContent === ''", timeout=LIMIT_S * 1000
        )
        assert "finished" in reader.page.inner_text("[data-part=head]")
    assert reader.faults == []


def test_pages_of_a_finished_quickstart_are_sound(
    quickstart: subprocess.Popen[str], run_dir: Path, tmp_path: Path
):
    assert quickstart.wait(LIMIT_S) == 0, (run_dir.parent / "log").read_text()
    copy = shutil.copytree(run_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("eval", "sft", "base"))
    with hone_view(run_dir, copy) as server, visitor(tmp_path) as reader:
        line = training(server, state="finished")
        assert line is not None
        rollout = stored_rollout(server, line["name"])
        for name, address in addresses(server, line["name"], rollout):
            reader.visit(address, name)
        by_kind: dict[str, list[str]] = {}
        for each in ask(f"{server}/api/runs"):
            by_kind.setdefault(each["kind"], []).append(each["name"])
        reader.visit(f"{server}/runs/{by_kind['evaluation'][0]}", "evaluation")
        first, second = by_kind["evaluation"][:2]
        reader.visit(f"{server}/compare?run={first}&run={second}", "paired")
        first, second = by_kind["training"][:2]
        reader.visit(f"{server}/compare?run={first}&run={second}", "compare")
    assert reader.faults == []


def test_login_opens_the_page_that_was_asked_for(
    quickstart: subprocess.Popen[str], run_dir: Path, tmp_path: Path
):
    assert quickstart.wait(LIMIT_S) == 0
    token = tmp_path / "token"
    token.write_text("a-token-of-the-test")
    token.chmod(0o600)
    with hone_view(run_dir, "--token-file", token) as server, visitor(tmp_path) as reader:
        reader.visit(f"{server}/runs/run/rollouts?outcome=resolved", "login")
        reader.page.fill("input[name=token]", "a-token-of-the-test")
        reader.page.keyboard.press("Enter")
        reader.page.wait_for_url("**/runs/run/rollouts?outcome=resolved")
    assert reader.faults == []


def test_keyboard_filters_and_hover_work(quickstart: subprocess.Popen[str], run_dir: Path, tmp_path: Path):
    assert quickstart.wait(LIMIT_S) == 0
    with hone_view(run_dir) as server, visitor(tmp_path) as reader:
        line, page = training(server, state="finished"), reader.page
        assert line is not None
        page.goto(f"{server}/runs/{line['name']}")
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_url("**/rollouts")
        page.keyboard.press("/")
        page.keyboard.type("no-such-task")
        page.keyboard.press("Enter")
        page.wait_for_url("**/rollouts?task=no-such-task")
        assert "No rollout matches" in page.inner_text("main")
        page.go_back()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector(".conversation")
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_selector("#nodes[data-ready] .node.sampled .t")
        page.hover(".node.sampled .t")
        told = page.inner_text("#tip")
        assert "logprob, engine" in told
        assert "bytes" in told
        page.keyboard.press("?")
        assert page.is_visible("#help")
    assert reader.faults == []


def test_exported_pages_open_without_a_server(
    quickstart: subprocess.Popen[str], run_dir: Path, tmp_path: Path
):
    assert quickstart.wait(LIMIT_S) == 0
    written = export(Library([run_dir]), tmp_path / "out")
    with visitor(tmp_path) as reader:
        page = reader.page
        page.goto(written.first.as_uri())
        page.click("tbody a.open >> nth=0")
        page.click("nav.tabs >> text=Rollouts")
        page.click("tbody a.open >> nth=0")
        page.click("text=Token view")
        page.wait_for_selector("#nodes[data-ready] .t")
    assert reader.faults == []
