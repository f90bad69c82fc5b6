"""The base install: everything but the learner and the local engine, without torch and transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # imports everything, in processes
ROOT = Path(__file__).parent.parent
NEEDS_EXTRA = {
    "hone.integrations.harbor": "harbor",
    "hone.integrations.mini_swe_agent": "minisweagent",
    "hone.integrations.verl.loop": "verl",
    "hone.integrations.openenv": "openenv",
    "hone.integrations.swe_rex": "swe-rex",
    "hone.integrations.tinker_cookbook": "tinker-cookbook",
    "hone.integrations.verifiers": "verifiers",
    "hone.integrations.prime_rl": "torch",
    "hone.integrations.tinker": "torch",
    "hone.integrations.trl": "torch",
    "hone.launch.learner": "torch",
    "hone.launch.quickstart": "transformers",
    "hone.launch.sft": "transformers",
    "hone.launch.tinker": "torch",
    "hone.launch.train": "transformers",
    "hone.launch.validate": "safetensors",
    "hone.launch.weights": "torch",
    "hone.policy.batch": "torch",
    "hone.policy.kv": "torch",
    "hone.policy.local": "torch",
    "hone.policy.routing": "torch",
    "hone.policy.scoring": "torch",
    "hone.train": "torch",
}
"""Module or package whose import may fail in the base install. Every other one must import."""

BLOCK = """
import sys
from hone.cli.errors import EXTRAS
class Blocked:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in EXTRAS:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
sys.meta_path.insert(0, Blocked())
"""
IMPORT_ALL = """
import importlib, pkgutil
import hone
def visit(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if any(part in ("inside", "in_sandbox") for part in found.name.split(".")):
            continue  # files that run in sandboxes, on their own
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            print(found.name, error.name)
            continue
        if found.ispkg:
            visit(module)
visit(hone)
"""


def run_without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_base_install_imports_every_module_outside_the_extras():
    done = run_without_extras(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    failed = dict(line.split() for line in done.stdout.splitlines())
    unexpected = {
        name: missing
        for name, missing in failed.items()
        if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in NEEDS_EXTRA)
    }
    assert unexpected == {}


def test_missing_extra_is_named():
    done = run_without_extras(
        "from hone.cli import main; sys.exit(main())",
        "train",
        "recipes/quickstart.toml",
        "--set",
        "train.steps=1",
    )
    assert done.returncode == 1
    assert "pip install 'hone-rl[train]'" in done.stderr, done.stderr
