"""Print a task."""

from __future__ import annotations

from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from hone.cli.output import console, print_fields
from hone.types import Task

LEXERS = {".py": "python", ".md": "markdown", ".toml": "toml", ".json": "json"}


def print_task(task: Task, *, reveal: bool) -> None:
    out = console()
    families = {"family": task.metadata.get("family")} if reveal else {}
    print_fields({"task": task.id, "source": task.source, "set": task.metadata.get("split"), **families})
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
    if reveal:
        _print_checks(task)
    else:
        out.print(Text("Hidden tests and the gold patch: --reveal", style="dim"))


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
