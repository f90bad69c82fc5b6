"""Positive controls: the attacks win against a naive grader, so that resisting them means something."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.attacks.grading.attack import FIXED, Attack
from tests.attacks.grading.naive import fooled_readers

# Attacks on parts that only Hone's grader has (its channel, key, nonce, plugin, modules), attacks that a test
# framework resists by itself, and malformed patches: a naive grader cannot lose to them.
NO_CONTROL = {
    "test_answers": {"is unequal to itself", "answers a mock", "answers nothing"},
    "test_results": {
        "prints a report", "writes a report to the runner's output", "writes to the runner's descriptors",
        "floods the channel", "replaces the sender's code", "registers a plugin by a name in the environment",
        "removes the grader's plugin", "forges its own result", "traces the tests",
        "replaces the import of tests",
    },
    "test_suites": {
        "deletes tests", "renames tests", "empties tests", "skips tests", "shadows tests by a module",
        "changes file times", "leaves bytecode of false tests", "patches the test module's globals",
        "replaces the other tests' functions", "patches the class of unittest's raises",
    },
    "test_marks": set[str](),
    "test_expectations": {"replaces the comparison in the test module"},
    "test_configuration": {
        "a conftest.py written while it is imported", "the environment of a shell", "bytecode",
        "a false module of the runner", "wrappers written while it is imported",
        "a startup file written while it is imported", "pytest rewritten while it is imported", "attributes",
        "submodules", "a package in the place of the module", "git history",
    },
    "test_patches": {
        "nothing", "an absolute path", "a hidden second header", "a header within a hunk", "a submodule",
        "a rename of the tests", "a mode of the tests", "the tests in capitals", "a name with a line end",
        "a patch of many files", "a patch that is too large",
    },
    "test_endings": {
        "raises SystemExit within a test", "replaces sys.exit", "replaces os._exit", "forks the session",
        "interrupts the runner", "handles every signal", "leaves a process behind", "exits in a thread",
    },
    "test_scripts": {
        *(f"{name} ({kind})" for kind in ("pytest", "unittest", "log") for name in (
            "forges the first marker", "forges the last marker", "forges an exit code", "edits the tests",
            "has a git hook", "rewrites the script", "rewrites the tests", "reads the nonce",
        )),
        *(f"{name} (pytest)" for name in (
            "prints a summary", "forges both markers", "doubles the markers from standard error",
            "says ok before it fails", "says ok after it failed",
        )),
        *(f"{name} ({kind})" for kind in ("unittest", "log") for name in (
            "has a conftest.py", "has a pytest.ini", "has a plugin by entry point", "has a false pytest",
        )),
        "kills its parents (log)",
    },
}  # fmt: skip


def test_naive_grader_is_not_fooled_by_honest_patches(tmp_path: Path) -> None:
    honest = {"no change": Attack(patch=""), "the fix": Attack(files={"stats.py": FIXED})}
    fooled = fooled_readers(honest, tmp_path)
    assert fooled["no change"] == set()
    assert fooled["the fix"] >= {"exit code", "output", "records"}
    assert "no result" not in fooled["the fix"]


@pytest.mark.parametrize(
    "module",
    [name if name == "test_answers" else pytest.param(name, marks=pytest.mark.full) for name in NO_CONTROL],
)  # fmt: skip
def test_attacks_fool_a_naive_grader(module: str, tmp_path: Path) -> None:
    attacks = importlib.import_module(f"tests.attacks.grading.{module}").ATTACKS
    assert NO_CONTROL[module] <= set(attacks)
    controlled = {name: attack for name, attack in attacks.items() if name not in NO_CONTROL[module]}
    fooled = fooled_readers(controlled, tmp_path)
    assert [name for name, readers in fooled.items() if not readers] == []
