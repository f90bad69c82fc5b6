"""The wheel of Hone, and a fresh environment with it, away from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.e2e.small_run import REPOSITORY, TIMEOUT_S


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without this checkout on the path of its imports."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def build_wheel(folder: Path) -> Path:
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("hone_rl-*.whl")
    return built


def make_environment(wheel: Path, venv: Path) -> Path:
    """Make an environment with the wheel and what it depends on; return its command `hone`."""
    uv, constraints = Path(sys.executable).with_name("uv"), REPOSITORY / "constraints.txt"
    for command in (
        (uv, "venv", "--allow-existing", "--python", sys.executable, venv),
        (uv, "pip", "install", "--python", venv / "bin" / "python", "-c", constraints, wheel),
    ):
        done = run(*command, cwd=venv.parent)
        assert done.returncode == 0, done.stderr
    return venv / "bin" / "hone"


def lend_extras(venv: Path) -> None:
    """Let an environment import torch and the like from this one, where it has no package of its own."""
    (packages,) = venv.glob("lib/python*/site-packages")
    extras = sysconfig.get_path("purelib")  # of a folder named so, Python reads no .pth files
    (packages / "extra-train.pth").write_text(f"{extras}\n")
    done = run(venv / "bin" / "python", "-c", "import hone; print(hone.__file__)", cwd=venv)
    assert done.stdout == f"{packages}/hone/__init__.py\n", done.stderr
