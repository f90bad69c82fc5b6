"""The wheel: what is in it, and that it works in a fresh environment away from the repository."""

from __future__ import annotations

import email
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import hone
from tests.test_repository import CONTAINER_COMMANDS, MACHINE_PATHS, ROOT
from tests.wheels import build_wheel, make_environment, run

pytestmark = pytest.mark.slow  # starts processes
PACKAGES = ("hone", "hone_verifiers")
READ_AT_RUN_TIME = {
    "hone/agents/blackbox/presets/qwen-code.toml",
    "hone/agents/prompts/default.yaml",
    "hone/py.typed",
    "hone/recipes/quickstart.toml",
    "hone/recipes/shared/swe.toml",
    "hone/rollout/schema.sql",
    "hone/tasks/specifications/data/swe-bench.json",
    "hone/view/web/assets/hone.css",
    "hone/view/web/templates/base.html.jinja",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(contents: dict[str, bytes]) -> Message:
    return email.message_from_bytes(contents[f"hone_rl-{hone.__version__}.dist-info/METADATA"])


def test_wheel_holds_the_files_of_the_packages_and_no_others(contents: dict[str, bytes]):
    listed = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES, cwd=ROOT
    ).stdout.split("\0")
    packaged = {name for name in listed if name and (ROOT / name).is_file()}
    about = f"hone_rl-{hone.__version__}.dist-info/"
    assert {name for name in contents if not name.startswith(about)} == packaged
    assert packaged >= READ_AT_RUN_TIME
    assert {name.removeprefix(about) for name in contents if name.startswith(about)} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_wheel_names_no_path_of_a_machine(contents: dict[str, bytes]):
    commands = CONTAINER_COMMANDS.relative_to(ROOT).as_posix()
    found = [
        f"{name}: {match.group()}"
        for name, data in contents.items()
        if not name.startswith(commands)
        for match in MACHINE_PATHS.finditer(data.decode("utf-8", "replace"))
    ]
    assert found == []
    assert [name for name, data in contents.items() if str(ROOT).encode() in data] == []


def test_wheel_is_described_for_an_index(metadata: Message, contents: dict[str, bytes]):
    assert (metadata["Name"], metadata["Version"]) == ("hone-rl", hone.__version__)
    assert (metadata["License-Expression"], metadata["Author"]) == ("Apache-2.0", "The Hone developers")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    scripts = contents[f"hone_rl-{hone.__version__}.dist-info/entry_points.txt"].decode()
    assert "hone = hone.cli:main" in scripts


def test_base_install_of_the_wheel_needs_no_extra(metadata: Message):
    needs = metadata.get_all("Requires-Dist") or []
    base = {need.split(";")[0] for need in needs if "extra ==" not in need}
    heavy = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "vllm", "swebench")
    assert [need for need in base if need.startswith(heavy)] == []
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras >= {"train", "vllm", "sglang", "datasets", "swebench", "mini-swe-agent", "dev"}


@pytest.mark.full
@pytest.mark.sandbox
def test_installed_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path):
    command = make_environment(wheel, tmp_path / "venv")

    def hone_says(*words: str) -> str:
        done = run(command, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert hone_says("--version") == f"hone {hone.__version__}\n"
    assert "Ready" in hone_says("doctor")
    assert "hone quickstart --dry-run" in hone_says("quickstart", "--help")
    assert "Fits one machine" in hone_says("plan", "swe-8b-tiny")
    assert f"Their files: {tmp_path / 'venv'}" in hone_says("recipes", "list")
    (tmp_path / "mine.toml").write_text(hone_says("recipes", "show", "debugger-8b-tiny"))
    assert "Nothing was started" in hone_says("train", "mine.toml", "--dry-run")
    refused = run(command, "train", "swe-8bb", cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no recipe swe-8bb: did you mean swe-8b" in refused.stderr
    incomplete = run(command, "quickstart", cwd=tmp_path)
    assert incomplete.returncode == 1
    assert "pip install 'hone-rl[train]'" in incomplete.stderr
    assert not list(tmp_path.glob("runs"))
