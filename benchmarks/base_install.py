"""Size and time of the base install, and whether everything outside the extras works in it.

Makes an environment with no extra in a temporary folder and evaluates the scripted oracle in it. Prints
seconds, MiB and the import time of `hone`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
        python = Path(folder) / "venv" / "bin" / "python"
        run([sys.executable, "-m", "venv", str(python.parent.parent)])
        before = mib(python.parent.parent)
        begun = time.perf_counter()
        run(
            [
                str(Path(sys.executable).parent / "uv"),
                "pip",
                "install",
                "-q",
                "--python",
                str(python),
                str(ROOT),
            ]
        )
        seconds = time.perf_counter() - begun
        packages = run([str(python), "-m", "pip", "list", "--format=json"])
        names = {package["name"].lower() for package in json.loads(packages)}
        imports = [import_seconds(python, folder) for _ in range(9)]
        recipe = Path(folder) / "oracle.toml"
        recipe.write_text(RECIPE)
        hone = str(python.parent / "hone")
        run([hone, "eval", str(recipe), "-o", str(Path(folder) / "out")], cwd=folder)
        summary = json.loads((Path(folder) / "out" / "summary.json").read_text())
        figures = {
            "packages": len(names),
            "torch": "torch" in names,
            "transformers": "transformers" in names,
            "install_s": round(seconds, 1),
            "mib": round(mib(python.parent.parent) - before),
            "import_hone_ms": round(statistics.median(imports) * 1000, 1),
            "oracle_resolve_rate": summary.get("resolve_rate", summary.get("resolved")),
        }
    print(json.dumps(figures))
    return int(figures["torch"] or figures["transformers"])


def run(command: list[str], cwd: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def mib(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def import_seconds(python: Path, cwd: str) -> float:
    code = "import time; t = time.perf_counter(); import hone; print(time.perf_counter() - t)"
    return float(run([str(python), "-c", code], cwd=cwd))


if __name__ == "__main__":
    raise SystemExit(main())
