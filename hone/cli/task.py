"""Print a task."""

from __future__ import annotations

from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from hone.cli.output import console, print_fields
from hone.cli.summary import interval
from hone.tasks.places import changed_files
from hone.tasks.sources import PROOF, RATE, difficulty
from hone.types import Environment, Task

LEXERS = {".py": "python", ".md": "markdown", ".toml": "toml", ".json": "json"}


def print_task(task: Task, *, checks: bool) -> None:
    """Print a task; `checks`: also what the agent never sees."""
    out = console()
    families = {"family": task.metadata.get("family")} if checks else {}
    print_fields({"task": task.id, "source": task.source, "set": task.metadata.get("split"), **families})
    print_fields(_environment(task.environment))
    print_fields(difficulty_fields(task))
    out.print(Panel(Text(task.problem.strip()), title="issue", title_align="left"))
    files: dict[str, str] = {}
    for number, commit in enumerate(task.environment.history, start=1):
        out.print(Text.assemble(("commit ", "dim"), f"{number}  {commit.message.splitlines()[0]}"))
        for path, text in commit.files.items():
            files.pop(path, None)
            if text is not None:
                files[path] = text
    for path, text in sorted(files.items()):
        _print_file(path, text)
    if checks:
        _print_checks(task)
    else:
        out.print(Text("Hidden tests and the gold patch: --checks", style="dim"))


def _environment(environment: Environment) -> dict[str, object]:
    """Return what the task runs in; nothing of a repository that the task itself holds."""
    if environment.image == "host":
        return {}
    return {
        "image": environment.image,
        "repository": environment.repo or None,
        "commit": environment.commit or None,
        "python": environment.python or None,
        "requirements": ", ".join(environment.requirements) or None,
        "build": environment.build[0] if environment.build else None,
    }


def difficulty_fields(task: Task) -> dict[str, object]:
    """Return what says how hard a task is: measured, named by its data set, and the size of its fix."""
    lines = [line for line in task.checks.gold_patch.splitlines() if line[:1] in ("+", "-")]
    changed = sum(not line.startswith(("+++", "---")) for line in lines)
    rated = task.metadata.get(RATE)
    seconds = (task.metadata.get(PROOF) or {}).get("seconds")
    return {
        "resolve rate": f"{interval(rated['rate'], rated['low'], rated['high'])} of {rated['n']} rollouts of "
        f"{rated['policy']}"
        if rated
        else None,
        "difficulty": difficulty(task) or None,
        "size of the fix": f"{changed} lines in {len(changed_files(task.checks.gold_patch))} files",
        "tests": f"{len(task.checks.fail_to_pass)} to fix, {len(task.checks.pass_to_pass)} to keep",
        "time of its tests": f"{seconds:.1f} s" if seconds else None,
        "fairness": task.metadata.get("fairness"),
    }


def _print_checks(task: Task) -> None:
    out = console()
    for path, text in sorted(task.checks.test_files.items()):
        _print_file(f"hidden: {path}", text)
    out.print(Rule("gold patch", align="left", style="dim"))
    out.print(Syntax(task.checks.gold_patch.rstrip("\n"), "diff", theme="ansi_dark"))
    print_fields(
        {
            "fail to pass": "\n".join(task.checks.fail_to_pass),
            "pass to pass": "\n".join(task.checks.pass_to_pass) or "none",
        }
    )


def _print_file(path: str, text: str) -> None:
    out = console()
    out.print(Rule(Text(path), align="left", style="dim"))
    suffix = "." + path.rpartition(".")[2]
    out.print(Syntax(text.rstrip("\n"), LEXERS.get(suffix, "text"), theme="ansi_dark", word_wrap=True))
