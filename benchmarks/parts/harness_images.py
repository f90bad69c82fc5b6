"""Images and rows of the SWE-bench harness, made from Hone's tasks for a local Docker engine.

One base image holds this machine's interpreter, all of its standard library, and the pytest that Hone's
sandboxes have, so that both sides run the same tests with the same programs. On it, one image per task: the
repository as Hone's agents meet it in /testbed, and what it requires in site-packages. What differs remains:
the harness runs as root, and with the plugins that pytest finds by itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.parts.predictions import diff
from hone.environment import parse_patch
from hone.tasks.configuration import FILES, pytest_arguments
from hone.tasks.python import install
from hone.types import Task

BASE = "hone-harness-base:latest"
_LIBRARY = f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"{_LIBRARY}/site-packages"
_ENV = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # as in Hone's grading
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
_TESTS = ("python3", "-m", "pytest", "-rA", "--tb=short", "-p", "no:cacheprovider")
_SCRIPT = """#!/bin/bash
set -uxo pipefail
cd {workdir}
{reset}
git apply -v - <<'EOF_114329324912'
{test_patch}EOF_114329324912
: '>>>>> Start Test Output'
{tests}
: '>>>>> End Test Output'
{reset}
"""


def build_base(base: str) -> None:
    """BASE, from an image with bash, git, patch and this interpreter below /usr/local with pytest."""
    compiled = f"python3 -m compileall -q -x '/(test|tests|lib2to3|idlelib)/' /{_LIBRARY}"
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(Path(folder) / "layer.tar", "w") as tar:
            tar.add(sysconfig.get_path("stdlib"), _LIBRARY, filter=_standard)
            for locale in Path("/usr/lib/locale").glob("C.*"):
                tar.add(locale, str(locale).lstrip("/"), filter=_owned_by_root)
        _build(BASE, base, Path(folder), f"RUN {compiled} || true")


def build_image(task: Task, workspace: Path, cache: Path) -> str:
    """The task's image, by name.

    Args:
        workspace: its repository (`hone.tasks.workspace.prepare`).
        cache: of what repositories require (`hone.tasks.python.install`).
    """
    environment = task.environment
    name = f"hone-harness/{task.id.lower()}:latest"
    with tempfile.TemporaryDirectory() as folder:
        paths = "".join(f"{Path(environment.workdir) / path}\n" for path in environment.paths)
        (Path(folder) / "testbed.pth").write_text(paths)
        site = install(environment, cache) if environment.image.startswith("repo:") else None
        with tarfile.open(Path(folder) / "layer.tar", "w") as tar:
            tar.add(workspace, environment.workdir.strip("/"), filter=_owned_by_root)
            if site is not None:
                tar.add(site, _SITE, filter=_owned_by_root)
                for library in _libraries(site):
                    tar.add(library, str(library).lstrip("/"), filter=_owned_by_root)
            tar.add(Path(folder) / "testbed.pth", f"{_SITE}/testbed.pth")
        _build(name, BASE, Path(folder), f"WORKDIR {environment.workdir}")
    return name


def row(task: Task, workspace: Path, image: str) -> dict[str, Any]:
    """The task as a row of a SWE-bench data set, edition 5."""
    checks, environment = task.checks, task.environment
    test_patch = checks.test_patch or diff(
        {path: _read(workspace / path) for path in checks.test_files}, checks.test_files
    )
    before = {path: workspace / path for part in parse_patch(test_patch) for path in part.paths}
    commit = _git(workspace, "rev-parse", "HEAD").strip()
    old = [path for path, file in before.items() if file.is_file()]
    new = [path for path in before if path not in old]
    reset = [["git", "checkout", commit, *old]] * bool(old) + [["rm", "-f", *new]] * bool(new)
    script = _SCRIPT.format(
        workdir=shlex.quote(environment.workdir),
        reset="\n".join(map(shlex.join, reset)),
        test_patch=test_patch,
        tests=shlex.join([*_TESTS, *_arguments(workspace), *checks.command, *files(task)]),
    )
    return {
        "instance_id": task.id,
        "repo": environment.repo or task.id.rpartition("-")[0].replace("__", "/"),
        "version": environment.distribution.partition("==")[2] or "0",
        "base_commit": commit,
        "environment_setup_commit": commit,
        "image": image,
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": json.dumps(told(checks.fail_to_pass)),
        "PASS_TO_PASS": json.dumps(told(checks.pass_to_pass)),
        "patch": checks.gold_patch,
        "test_patch": test_patch,
        "problem_statement": task.problem,
        "hints_text": "",
        "created_at": "",
    }


def files(task: Task) -> list[str]:
    """The test files that the checks name."""
    tests = (*task.checks.fail_to_pass, *task.checks.pass_to_pass)
    return list(dict.fromkeys(test.split("::")[0] for test in tests))


def told(tests: Sequence[str]) -> list[str]:
    """Test ids as the harness's parser reads them, and so as its data sets name them: cut at a blank."""
    return list(dict.fromkeys(test.split()[0] for test in tests))


def _arguments(workspace: Path) -> list[str]:
    """Of a repository's own arguments those that Hone keeps; others (coverage, processes) need plugins."""
    texts = {name: text for name in FILES if (text := _read(workspace / name)) is not None}
    if not any("addopts" in text for text in texts.values()):
        return []
    return ["-o", "addopts=", *pytest_arguments(texts)]


def _build(name: str, base: str, folder: Path, *lines: str) -> None:
    """An image of `base` with the files of `folder`/layer.tar."""
    settings = [f'ENV {key}="{value}"' for key, value in _ENV.items()]
    (folder / "Dockerfile").write_text("\n".join([f"FROM {base}", "ADD layer.tar /", *settings, *lines, ""]))
    command = ["docker", "build", "-q", "--network", "none", "-t", name, str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "DOCKER_BUILDKIT": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the image {name} cannot be built: {done.stderr[-2000:]}")


def _standard(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The standard library with what is compiled of it, without what is installed beside it."""
    parts = info.name.removeprefix(_LIBRARY).split("/")
    left_out = len(parts) > 1 and (parts[1] == "site-packages" or parts[1].startswith("config-"))
    return None if left_out else _owned_by_root(info)


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _libraries(site: Path) -> set[Path]:
    """Of this machine, what compiled modules need."""
    found: set[Path] = set()
    for module in site.rglob("*.so*"):
        told = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=False).stdout
        found |= {Path(path).resolve() for path in re.findall(r"=> (/\S+) \(0x", told)}
    return {path for path in found if not path.is_relative_to(site)}


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
