"""Which of the shipped recipes fit which machine, and why the others are refused.

python benchmarks/plans.py             the table, then one JSON line
python benchmarks/plans.py --comments  the two comment lines of each recipe, for its own hardware
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from hone.config import resolve
from hone.config.bundled import FOLDER
from hone.config.device_plan import MachinePlan, plan_devices
from hone.config.fitting import refusal
from hone.utils.devices import Devices, equal_devices

RECIPES = FOLDER
COMMAND = re.compile(r"^#   hone plan (\S+) --gpus (\d+)((?: --\S+ \S+)*)$", re.M)
MACHINES = {
    "1 x 24 GiB": equal_devices(1, 24),
    "1 x 80 GiB": equal_devices(1, 80),
    "8 x 80 GiB": equal_devices(8, 80),
    "8 machines": equal_devices(8, 80, nodes=8),
}


def recipes() -> list[Path]:
    """Return the recipes without the tiny variants."""
    return [path for path in every_recipe() if not path.stem.endswith("-tiny")]


def every_recipe() -> list[Path]:
    return sorted(RECIPES.glob("*.toml"))


def own_machine(path: Path) -> tuple[str, Devices]:
    """Return the command of `hone plan` in a recipe's comments and the machines that it describes."""
    found = COMMAND.search(path.read_text())
    if found is None or found[1] != path.stem:
        raise ValueError(f"{path} has no comment `#   hone plan {path.stem} --gpus N ...`")
    options = dict(re.findall(r"--(\S+) (\S+)", found[3]))
    host = options.get("host-memory")
    devices = equal_devices(
        int(found[2]),
        float(options.get("gpu-memory", 80)),
        nodes=int(options.get("nodes", 1)),
        host_gib=None if host is None else float(host),
    )
    return found[0], devices


def own_plan(path: Path) -> tuple[str, MachinePlan]:
    """Return the two comment lines of a recipe, and its plan on its own hardware."""
    command, devices = own_machine(path)
    plan = plan_devices(resolve(path), "train", devices)
    return f"{command}\n#   {plan.summary}", plan


def table() -> list[dict[str, str]]:
    """Return a row per recipe: "" for each machine that it fits, else the refusal."""
    rows: list[dict[str, str]] = []
    for path in recipes():
        settings = resolve(path)
        row = {name: refusal(settings, "train", devices) for name, devices in MACHINES.items()}
        rows.append({"recipe": path.stem, **row})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comments", action="store_true")
    if parser.parse_args().comments:
        for path in every_recipe():
            print(own_plan(path)[0])
        return
    rows = table()
    print(f"{'recipe':<22}" + "".join(f"{name:<13}" for name in MACHINES))
    for row in rows:
        print(f"{row['recipe']:<22}" + "".join(f"{(row[n] and 'refused') or 'fits':<13}" for n in MACHINES))
    for row in rows:
        for name in MACHINES:
            if row[name]:
                print(f"\n{row['recipe']} on {name}: {row[name]}.")
    print(
        json.dumps({"benchmark": "plans", "fits": {r["recipe"]: [not r[n] for n in MACHINES] for r in rows}})
    )


if __name__ == "__main__":
    main()
