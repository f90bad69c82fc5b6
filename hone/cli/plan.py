"""`--help-config`: print every setting with its type, default and description. `--dry-run`: print a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hone.cli.output import console, print_fields, print_table
from hone.config import Plan, RunSettings, walk
from hone.config.device_plan import PARTS, DevicePlan, MachinePlan


def print_settings() -> None:
    """Print one block per group, in the order of a recipe."""
    out = console()
    out.print(
        "In a recipe, write a setting below its [group]; --set takes the full dotted name.", markup=False
    )
    tables: dict[str, Table] = {"": _table()}
    titles: dict[str, Text] = {"": Text("top level, before any group", style="bold")}
    for setting in walk(RunSettings):
        group, _, name = setting.path.rpartition(".")
        description = " ".join((setting.info.description or "").split())
        if setting.group:
            tables[setting.path] = _table()
            titles[setting.path] = Text.assemble((f"[{setting.path}]", "bold"), f"  {description}")
        else:
            only = f"  only {', '.join(setting.kinds)}" if setting.kinds else ""
            described = Text.assemble(description, (f"  {setting.type_name}{only}", "dim"))
            tables[group].add_row(Text(name), Text(_default(setting.default)), described)
    for path, table in tables.items():
        out.print()
        out.print(titles[path])
        out.print(table)


def _table() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=20, no_wrap=True)
    table.add_column(style="green", min_width=10, max_width=18, overflow="fold")
    table.add_column()
    return table


def _default(value: Any) -> str:
    if value is ...:
        return "required"
    if value is None or (isinstance(value, (dict, frozenset, tuple, list)) and not value):
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_devices(machine: MachinePlan) -> None:
    """Print the memory of each device in GiB; equal devices share a line."""
    if not machine.devices:
        return
    groups: dict[tuple[float, ...], list[DevicePlan]] = {}
    for device in machine.devices:
        key = (*device.parts.values(), device.total, device.memory, float(device.fits))
        groups.setdefault(key, []).append(device)
    columns = [(group[0], group) for group in groups.values()]
    used = [part for part in PARTS if any(device.parts[part] for device in machine.devices)]
    rows = [
        ("used by", *(_names([use for device in group for use in device.uses]) for _, group in columns)),
        *((part, *(f"{first.parts[part]:.2f}" for first, _ in columns)) for part in used),
        ("total at the peak", *(f"{first.total:.2f}" for first, _ in columns)),
        ("memory", *(f"{first.memory:.2f}" for first, _ in columns)),
        ("fits", *("yes" if first.fits else "no" for first, _ in columns)),
    ]
    print_table(["GiB", *(_names([device.device for device in group]) for _, group in columns)], rows)
    if machine.step_seconds is not None:
        console().print(f"Estimated time of a step: {machine.step_seconds:,.0f} s")


def _names(names: Sequence[str]) -> str:
    """Return each name once; more than two that differ in their number only as "GPU 0 to GPU 7"."""
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        kinds.setdefault(name.rstrip("0123456789"), []).append(name)
    shown = [f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(each) for each in kinds.values()]
    return ", ".join(shown)


def print_plan(plan: Plan) -> None:
    print_fields(
        {
            "run directory": plan.run_dir,
            "model": plan.model,
            "engine": plan.engine or None,
            "judge": plan.judge or None,
            "teacher": plan.teacher or None,
            "parameters": None if plan.parameters is None else f"{plan.parameters:,}",
            "tasks": plan.tasks,
            "steps": plan.steps or None,
            "rollouts": f"{plan.rollouts:,}",
            "tokens": f"at most {plan.tokens:,}" if plan.parameters else None,
            "sandboxes": f"{plan.sandboxes} concurrent" if plan.sandboxes else None,
            "sandbox memory": f"at most {plan.sandboxes_gib:.1f} GiB" if plan.sandboxes else None,
        }
    )
    print_devices(plan.machine)
    if plan.refusal:
        console().print(f"[red]Does not fit[/red]: {escape(plan.refusal)}")
    print_notes(plan)
    for prerequisite in plan.missing:
        console().print(f"[yellow]Missing[/yellow]: {escape(prerequisite)}")
    console().print("Nothing was started. Run the same command without --dry-run to start.")


def print_notes(plan: Plan) -> None:
    """Print what a run will meet, what it downloads, and which variables its settings come from."""
    for path, (variable, value) in plan.variables.items():
        console().print(f"{path} = {value} is from the environment variable {variable}", markup=False)
    if plan.unused:
        console().print(f"[dim]Unused keys of the agent's prompts: {escape(', '.join(plan.unused))}[/dim]")
    for name in plan.downloads:
        console().print(f"The run downloads {escape(name)}; before that: hf download {escape(name)}")
    for warning in plan.warnings:
        console().print(f"[yellow]Warning[/yellow]: {escape(warning)}")
