"""The reference pages, made from the code: settings, commands, outcomes, metrics, the Python front door."""

from __future__ import annotations

import html
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from metric_names import metrics_page

import hone
from hone.config import RunSettings, walk
from hone.config.fields import Setting
from hone.settings import Mark

UNITS = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_kib": "KiB",
    "_mib": "MiB",
    "_gib": "GiB",
    "_tokens": "tokens",
    "_characters": "characters",
    "_chars": "characters",
}
UNIONS = re.compile(r"(\w+settings)( or \w+settings)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str  # in the menu
    text: Callable[[], str]  # Markdown


# --- settings


def settings_page() -> str:
    """Return every setting of a recipe: a table per group, in the order of `hone --help-config`."""
    groups: dict[str, tuple[str, list[str]]] = {"": ("Settings above every group of a recipe.", [])}
    for setting in walk(RunSettings):
        description = cell(setting.info.description or "")
        if setting.group:
            groups[setting.path] = (description, [])
        else:
            group, _, name = setting.path.rpartition(".")
            only = f" Only: {', '.join(f'`{kind}`' for kind in setting.kinds)}." if setting.kinds else ""
            # no effect on results: the same run directory continues
            mark = " ↺" if Mark.SAME_RESULTS in setting.marks else ""
            cells = [f"`{name}`{mark}", code(setting.type_name), unit(setting), default(setting.default)]
            groups[group][1].append(f"| {' | '.join(cells)} | {description}{only} |")
    lines = [
        "# Settings",
        "",
        "Every setting of a [recipe](../03-recipes.md), from the code. In a recipe, write a setting below "
        "its `[group]`; `--set` takes the full name, such as `--set train.steps=5`. `hone --help-config` "
        "prints the same list. A setting with ↺ changes how a run computes and not its results: a run goes "
        "on when it changes.",
        "",
    ]
    for path, (description, rows) in groups.items():
        heading, anchor = (f"`[{path}]`", path.replace(".", "-")) if path else ("Top level", "top-level")
        lines += [f"## {heading} {{: #{anchor} }}", "", description, ""]
        if rows:
            lines += ["| setting | type | unit | default | |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def unit(setting: Setting) -> str:
    """Return the unit that the name of a number ends in; "" where the description says it."""
    if not re.search(r"\b(int|float)\b", setting.type_name):
        return ""
    name = setting.path.rpartition(".")[2]
    return next((word for suffix, word in UNITS.items() if name.endswith(suffix)), "")


def default(value: Any) -> str:
    if value is ...:
        return "required"
    if value is None or (isinstance(value, (dict, frozenset, tuple, list)) and not value):
        return "-"
    if isinstance(value, (list, tuple)):
        return code("[" + ", ".join(map(str, value)) + "]")
    return code(str(value).lower() if isinstance(value, bool) else str(value))


# --- commands


def commands_page() -> str:
    """Return every command with its help, arguments and options."""
    import typer.main

    from hone.cli.app import app

    root: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Every command of `hone`, from the code; `hone COMMAND --help` prints the same.",
        "",
    ]
    lines += ["## hone", "", "Global options:", "", *options(root.params), ""]
    for path, command in leaves(root, ["hone"]):
        name = " ".join(path)
        usage = " ".join([name, *filter(None, map(piece_of_usage, command.params)), "[OPTIONS]"])
        lines += [f"## {name} {{: #{'-'.join(path[1:])} }}", "", "```text", usage, "```", ""]
        lines += [*help_text(command.help or ""), *options(command.params), ""]
    return "\n".join(lines)


def leaves(command: Any, path: Sequence[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the commands below a group, the group's own call among them where it has one."""
    inner = getattr(command, "commands", None)
    if inner is None or (len(path) > 1 and command.invoke_without_command):
        yield list(path), command
    for name, each in (inner or {}).items():
        if not each.hidden:
            yield from leaves(each, [*path, name])


def piece_of_usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return name if parameter.required else f"[{name.strip('[]')}]"
    if parameter.required:
        return f"{max(parameter.opts, key=len)} {parameter.metavar or parameter.name.upper()}"
    return ""


def options(parameters: Sequence[Any]) -> list[str]:
    """Return a table of arguments and options; [] without any."""
    rows: list[str] = []
    for parameter in parameters:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = code((parameter.metavar or parameter.name.upper()).strip("[]"))
        else:
            name = ", ".join(code(spelling) for spelling in [*parameter.opts, *parameter.secondary_opts])
            name += "" if parameter.is_flag else f" {code(value_of(parameter))}"
        shown = "required" if parameter.required else default(parameter.default or None)
        rows.append(f"| {name} | {shown} | {cell(plain(parameter.help or ''))} |")
    return ["| | default | |", "|---|---|---|", *rows] if rows else []


def value_of(parameter: Any) -> str:
    """Return what an option takes: its choices, or the name of its value."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if parameter.metavar is None and typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    return parameter.metavar or parameter.name.upper()


def help_text(text: str) -> list[str]:
    """Return the paragraphs of a help text; examples become blocks."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        example = re.match(r"\[bold\]Examples?\[/bold\]: *(.*)", paragraph, re.DOTALL)
        lines += ["```text", " ".join(example[1].split()), "```", ""] if example else [plain(paragraph), ""]
    return lines


def plain(text: str) -> str:
    """Return a help text without rich's markup."""
    return re.sub(r"\[/?(bold|dim|italic|red|green|yellow|cyan)\]", "", text)


# --- outcomes


def outcomes_page() -> str:
    """Return the closed list of endings of a rollout, with what each means for training."""
    from hone.outcomes import OUTCOME_RULES, Fault

    comments = enum_comments(sys.modules["hone.outcomes"], "Outcome")
    faults = {Fault.NONE: "none", Fault.POLICY: "the policy", Fault.INFRASTRUCTURE: "infrastructure"}
    trained = {"yes": "yes", "by_config": "unless `rollout.masked` names it", "never": "never"}
    lines = [
        "# Outcomes",
        "",
        "Every rollout ends in one of these, from the table in `hone/outcomes.py`. A recipe may change "
        "rewards (`rollout.rewards`) and masks (`rollout.masked`), never the fault. A graded ending may "
        "still be `resolved`: the patch that the agent left is tested.",
        "",
        "| outcome | meaning | at fault | reward | trained | in the group's baseline | graded |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome, rule in OUTCOME_RULES.items():
        reward = "none" if rule.reward is None else f"{rule.reward:+g}"
        lines.append(
            f"| `{outcome}` | {cell(comments[outcome.name])} | {faults[rule.fault]} | {reward} "
            f"| {trained[rule.trained]} | {yes(rule.in_baseline)} | {yes(rule.graded)} |"
        )
    return "\n".join([*lines, ""])


def enum_comments(module: ModuleType, name: str) -> dict[str, str]:
    """Return the comment beside each member of an enumeration.

    Raises:
        ValueError: a member has none.
    """
    source = inspect.getsource(getattr(module, name))
    found = re.findall(r"^    (\w+) = \S+(?: +# (.*))?$", source, re.MULTILINE)
    comments = {key: re.sub(r"^noqa: \w+ - ", "", comment) for key, comment in found}
    if bare := [key for key, comment in comments.items() if not comment]:
        raise ValueError(
            f"{module.__name__}.{name}: write a comment beside {', '.join(bare)}; the docs show it"
        )
    return comments


# --- Python


def python_page() -> str:
    """Return the public names of `hone` with their signatures and docstrings."""
    lines = ["# Python", "", "The public names of `import hone`, from their docstrings.", ""]
    for name in sorted(hone.__all__, key=str.lower):  # pyright: ignore[reportAttributeAccessIssue]
        value = getattr(hone, name)
        lines += [f"## hone.{name} {{: #{name} }}", ""]
        if callable(value):
            lines += ["```python", signature(name, value), "```", "", *docstring(inspect.getdoc(value) or "")]
        else:
            lines += [code(repr(value)), ""]
    return "\n".join(lines)


def signature(name: str, value: Callable[..., Any]) -> str:
    """Return a call as it would be written, one argument a line where it is long."""
    try:
        found = inspect.signature(value)
    except ValueError:
        return f"{name}(...)"
    text = f"{name}{found}".replace("'", "")
    if len(text) <= 100:
        return text
    arguments = ",\n    ".join(str(parameter).replace("'", "") for parameter in found.parameters.values())
    returned = found.return_annotation
    end = "" if returned is inspect.Signature.empty else f" -> {str(returned).strip(chr(39))}"
    return f"{name}(\n    {arguments},\n){end}"


def docstring(text: str) -> list[str]:
    """Return a docstring as Markdown; `Args:`, `Returns:`, `Raises:` become lists, `Example:` a block."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\n(?=\S)", text):
        head, _, body = paragraph.partition("\n")
        if not re.fullmatch(r"[A-Z]\w+:", head):
            lines += [paragraph, ""]
            continue
        body = inspect.cleandoc(body)
        if head.startswith("Example"):
            lines += ["**Example**", "", "```python", body, "```", ""]
        else:
            items = re.split(r"\n(?=\S)", body)
            lines += [f"**{head[:-1]}**", ""]
            lines += [re.sub(r"^(\*{0,2}[\w., ]+):", r"- `\1`:", " ".join(each.split())) for each in items]
            lines.append("")
    return lines


# --- Markdown


def yes(value: bool) -> str:
    return "yes" if value else "no"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as code in a cell of a table; names of settings classes mean a group."""
    text = UNIONS.sub("group", text)
    # Markdown shows the escape of a bar inside backticks
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


PAGES: dict[str, Page] = {
    "reference/settings.md": Page(title="Settings", text=settings_page),
    "reference/commands.md": Page(title="Commands", text=commands_page),
    "reference/outcomes.md": Page(title="Outcomes", text=outcomes_page),
    "reference/metrics.md": Page(title="Metrics", text=metrics_page),
}
if hasattr(hone, "__all__"):
    PAGES["reference/python.md"] = Page(title="Python", text=python_page)
