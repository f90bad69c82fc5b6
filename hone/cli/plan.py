"""`--help-config`: print every setting with its type, default and description. `--dry-run`: print a plan."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hone.cli.output import console, print_fields
from hone.config import Plan, RunSettings, walk


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


def print_plan(plan: Plan) -> None:
    memory = {name: f"{size:.2f} GiB" for name, size in plan.memory_gib.items() if size > 0}
    print_fields(
        {
            "run directory": plan.run_dir,
            "model": plan.model,
            "engine": plan.engine or None,
            "judge": plan.judge or None,
            "parameters": None if plan.parameters is None else f"{plan.parameters:,}",
            "tasks": plan.tasks,
            "steps": plan.steps or None,
            "rollouts": f"{plan.rollouts:,}",
            "tokens": f"at most {plan.tokens:,}" if plan.parameters else None,
            "sandboxes": f"{plan.sandboxes} concurrent" if plan.sandboxes else None,
            "memory": f"at most {sum(plan.memory_gib.values()):.2f} GiB, activations not counted",
            **{f"  {name}": size for name, size in memory.items()},
        }
    )
    if plan.unused:
        console().print(f"[dim]Unused keys of the agent's prompts: {escape(', '.join(plan.unused))}[/dim]")
    for prerequisite in plan.missing:
        console().print(f"[yellow]Missing[/yellow]: {escape(prerequisite)}")
    console().print("Nothing was started. Run the same command without --dry-run to start.")
