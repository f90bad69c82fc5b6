"""The tables of docs/36-hardware.md, from the plans of the recipes.

python scripts/site/hardware.py          writes the tables into the page
python scripts/site/hardware.py --check  fails if the page differs
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
import plans  # noqa: E402  # pyright: ignore[reportMissingImports] - of benchmarks/

from hone.config import RunSettings, resolve  # noqa: E402
from hone.config.device_plan import DevicePlan, MachinePlan, plan_devices  # noqa: E402
from hone.config.fitting import refusal  # noqa: E402

PAGE = ROOT / "docs" / "36-hardware.md"
MARK = "<!-- below: made by scripts/site/hardware.py -->\n"
MACHINES = ("1 x 24 GiB", "1 x 80 GiB", "8 x 80 GiB")
OWN = """## Each recipe on its own hardware

Trainer and engine: memory of their fullest GPU at the peak of a step. Host memory: what the recipe offloads,
of each machine.
"""
FITS = """## Each recipe on what you have

`yes`: as it is. Settings: the recipe fits with these added (`--set`), by the same plan. `no`: use more or
larger GPUs, or a smaller model. "Trainer only": the recipe names engine servers on other machines
(`engine.urls`), which are not counted.
"""
ON_CPU = ("quickstart", "quickstart-tinker")  # the second trains at a service


def recipes() -> list[Path]:
    return [path for path in plans.recipes() if path.stem not in ON_CPU]


def tables() -> str:
    """Return both tables as Markdown."""
    head = ["recipe", "model", "trains", "context", "GPUs", "trainer", "engine", "host memory", "a step"]
    own = _table(head, [_own_row(path, resolve(path)) for path in recipes()])
    fits = [[f"`{path.stem}`", *(_fit(resolve(path), name) for name in MACHINES)] for path in recipes()]
    return f"{OWN}\n{own}\n\n{FITS}\n{_table(['recipe', *MACHINES], fits)}\n"


def _own_row(path: Path, settings: RunSettings) -> list[str]:
    _, devices = plans.own_machine(path)
    plan = plan_devices(settings, "train", devices)
    assert settings.model is not None
    gpus = len(devices.gpus) // plan_nodes(plan)
    machines = "" if plan_nodes(plan) == 1 else f"{plan_nodes(plan)} machines of "
    memory = devices.gpus[0].memory_gib
    return [
        f"`{path.stem}`",
        str(settings.model.path).rpartition("/")[2],
        f"LoRA, rank {settings.train.lora.rank}" if settings.train.lora else "all weights",
        f"{settings.engine.context_tokens:,}",
        f"{machines}{gpus} x {memory:g} GiB",
        _fullest(plan.devices, "rank", "trainer"),
        _fullest(plan.devices, "engine"),
        _offloaded(plan.devices),
        f"{float(f'{plan.step_seconds or 0:.1e}'):,.0f} s",
    ]


def plan_nodes(plan: MachinePlan) -> int:
    match = re.match(r"(\d+) machines", plan.machine)
    return int(match[1]) if match else 1


def _fullest(devices: Sequence[DevicePlan], *uses: str) -> str:
    gpus = [device for device in devices if device.device.startswith("GPU")]
    totals = [gpu.total for gpu in gpus if any(word in use for word in uses for use in gpu.uses)]
    return f"{max(totals):.0f} GiB" if totals else "-"


def _offloaded(devices: Sequence[DevicePlan]) -> str:
    totals = [device.total for device in devices if "memory" in device.device]
    return f"{max(totals):.0f} GiB" if totals and max(totals) >= 1 else "-"


def _fit(settings: RunSettings, machine: str) -> str:
    sentence = refusal(settings, "train", plans.MACHINES[machine])
    if not sentence:
        return "yes"
    found = re.search(r"It fits with (.+?)\.?$", sentence)
    if found is None:
        return "no"
    elsewhere = ["trainer only:"] if getattr(settings.engine, "urls", None) else []
    return "<br>".join(elsewhere + [f"`{each}`" for each in re.split(r"; (?=[a-z])", found[1])])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def page() -> str:
    """Return the page with its tables as the plans are now."""
    return PAGE.read_text().partition(MARK)[0] + MARK + "\n" + tables()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
