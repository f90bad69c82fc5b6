"""Size and time of the base install, and whether everything outside the extras works in it.

Builds the wheel, installs it without an extra in a fresh environment of a temporary folder, and evaluates
the scripted oracle there. The installation is timed the second time, when uv's cache has every package.
Prints seconds, MiB, and the time and number of modules of `import hone` and `import hone.cli`. Whether these
load torch is asked in this environment, which has it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = str(Path(sys.executable).with_name("uv"))
RECIPE = """
[agent]
kind = "oracle"
prompts = "tiny"
[tasks]
train = 0
test = 2
unseen = 0
allow_overlap = true
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=str(ROOT))
        (wheel,) = Path(folder).glob("*.whl")
        install(wheel, Path(folder) / "first")  # fills the cache
        python, seconds = install(wheel, Path(folder) / "venv")
        packages = run([UV, "pip", "list", "--format=json", "--python", str(python)])
        names = {package["name"].lower() for package in json.loads(packages)}
        loaded = {module: import_figures(python, folder, module) for module in ("hone", "hone.cli")}
        recipe = Path(folder) / "oracle.toml"
        recipe.write_text(RECIPE)
        hone = str(python.parent / "hone")
        run([hone, "eval", str(recipe), "-o", str(Path(folder) / "out")], cwd=folder)
        summary = json.loads((Path(folder) / "out" / "summary.json").read_text())
        figures = {
            "wheel_mib": round(wheel.stat().st_size / 2**20, 2),
            "packages": len(names),
            "torch": "torch" in names,
            "transformers": "transformers" in names,
            "install_s": round(seconds, 1),
            "mib": round(mib(python.parent.parent)),
            "import": loaded,
            "import_loads_torch": loads_torch(),
            "oracle_resolve_rate": summary.get("resolve_rate", summary.get("resolved")),
        }
    print(json.dumps(figures))
    return int(figures["torch"] or figures["transformers"] or figures["import_loads_torch"])


def run(command: list[str], cwd: str | None = None, *, with_errors: bool = False) -> str:
    """Return what a command prints; it does not see this checkout unless `cwd` is in it."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if with_errors else "")


def mib(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def install(wheel: Path, venv: Path) -> tuple[Path, float]:
    """Install the wheel in a new environment; return its Python and the seconds of the installation."""
    run([UV, "venv", "-q", "--python", sys.executable, str(venv)])
    python = venv / "bin" / "python"
    begun = time.perf_counter()
    run([UV, "pip", "install", "-q", "--python", str(python), str(wheel)])
    return python, time.perf_counter() - begun


def import_figures(python: Path, cwd: str, module: str) -> dict[str, float]:
    """Return the median time of an import in a new process, and the number of modules it adds.

    `cpu_ms` is the processor's time, which other work on the machine hardly changes.
    """
    code = (
        "import sys, time; n, t, c = len(sys.modules), time.perf_counter(), time.process_time(); "
        f"import {module}; print(time.perf_counter() - t, time.process_time() - c, len(sys.modules) - n)"
    )
    runs = [run([str(python), "-c", code], cwd=cwd).split() for _ in range(10)][1:]  # the first one compiles
    wall, cpu = ([float(each[i]) for each in runs] for i in (0, 1))
    return {
        "ms": round(statistics.median(wall) * 1000, 1),
        "cpu_ms": round(statistics.median(cpu) * 1000, 1),
        "modules": int(runs[0][2]),
    }


def loads_torch() -> bool:
    """Return whether `import hone.cli` imports torch or transformers where both are installed."""
    lines = run(
        [sys.executable, "-X", "importtime", "-c", "import hone.cli"], cwd=str(ROOT), with_errors=True
    ).splitlines()
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    return bool(names & {"torch", "transformers"})


if __name__ == "__main__":
    raise SystemExit(main())
