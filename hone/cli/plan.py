"""`--dry-run`: print the plan of a run."""

from __future__ import annotations

from rich.markup import escape

from hone.cli.output import console, print_fields
from hone.config import Plan


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
