"""The bash agent's prompts and limits, from a YAML file in mini-swe-agent's format.

Both generations of that format are supported, each with its own rules:

    1.x  observation template under `agent`; one ```bash block; an invalid reply stays in the conversation;
         `MINI_SWE_AGENT_FINAL_OUTPUT` submits, too
    2.x  observation template under `model`; calls of the tool `bash`, or one ```mswea_bash_command block;
         an invalid reply is left out of the conversation, only its error is added

A 2.x file asks for text if it sets `model.action_regex` or a `model.model_class` that ends in `textbased`, or
if its prompts show the block; otherwise for tool calls. Keys that have a meaning for the package only (a
model's name, a price limit, a container's arguments) are listed in `Scaffold.unused`; any other unknown key
is an error.
"""

from __future__ import annotations

import difflib
import functools
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import yaml

from hone.utils.errors import HoneError

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT_1 = "MINI_SWE_AGENT_FINAL_OUTPUT"  # 1.x accepts both
ACTION_REGEX = {1: r"```bash\s*\n(.*?)\n```", 2: r"```mswea_bash_command\s*\n(.*?)\n```"}

_TEMPLATES = {  # key -> the sections that may hold it
    "system_template": ("agent",),
    "instance_template": ("agent",),
    "action_observation_template": ("agent",),
    "observation_template": ("model",),
    "format_error_template": ("agent", "model"),
    "timeout_template": ("agent",),
    "action_regex": ("agent", "model"),
}
_LIMITS = {
    "agent": {"step_limit", "max_consecutive_format_errors", "wall_time_limit_seconds"},
    "environment": {"cwd", "env", "interpreter", "timeout"},
}
_UNUSED = {
    "agent": {"cost_limit", "output_path", "mode", "whitelist_actions", "confirm_exit", "agent_class"},
    "environment": {
        "container_timeout", "environment_class", "executable", "forward_env", "image", "pull_timeout",
        "run_args",
    },
    "model": {
        "cost_tracking", "litellm_model_registry", "model_class", "model_kwargs", "model_name",
        "multimodal_regex", "set_cache_control",
    },
}  # fmt: skip
_SECTIONS = ("agent", "environment", "model")
_DEFAULTS: dict[str, Any] = {  # the package's; variables of templates that the file does not set
    "step_limit": 0, "cost_limit": 3.0, "wall_time_limit_seconds": 0, "max_consecutive_format_errors": 3,
    "output_path": None, "model_kwargs": {}, "litellm_model_registry": None, "set_cache_control": None,
    "cost_tracking": "default", "multimodal_regex": "",
}  # fmt: skip
_TEXT = re.compile(r"```mswea_bash_command\b")


class ScaffoldError(HoneError, ValueError):
    """A prompt or program file cannot be used; the message says where and why."""


class Mode(StrEnum):
    """The form in which a reply asks for commands."""

    TEXT = "text"  # one fenced block
    TOOLS = "tools"  # calls of the tool `bash`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    generation: int  # of the format: 1 or 2
    mode: Mode
    system_template: str  # "": no system message
    instance_template: str
    observation_template: str
    format_error_template: str
    timeout_template: str | None = None  # None: observation_template serves timeouts, too
    action_regex: str = ACTION_REGEX[1]  # one group: the command
    step_limit: int = 0  # replies; 0: no limit
    max_consecutive_format_errors: int = 3  # 0: no limit
    wall_time_limit_s: float = 0  # 0: no limit
    timeout_s: float = 30  # of one command
    cwd: str | None = None  # None: the task's workdir
    env: Mapping[str, str]
    interpreter: tuple[str, ...] = ("bash", "-c")  # gets the command as its last argument
    written: Mapping[str, Any]  # the file's keys of all sections, as template variables
    unused: tuple[str, ...] = ()  # keys of the YAML without effect here

    @property
    def submits(self) -> tuple[str, ...]:
        """Return the first lines of output that submit."""
        return (SUBMIT, SUBMIT_1) if self.generation == 1 else (SUBMIT,)

    def variables(self, workdir: str) -> dict[str, Any]:
        """Return the variables of every template."""
        return {
            **_DEFAULTS,
            **self.written,
            "step_limit": self.step_limit,
            "max_consecutive_format_errors": self.max_consecutive_format_errors,
            "wall_time_limit_seconds": self.wall_time_limit_s,
            "cwd": self.cwd or workdir,
            "env": dict(self.env),
            "timeout": self.timeout_s,
            "interpreter": list(self.interpreter),
            "action_regex": self.action_regex,
            **platform.uname()._asdict(),
        }

    def actions(self, reply: str) -> list[str]:
        """Return the commands in the text of a reply.

        None if a fence inside the only command may have cut it short: the ending fence is followed by one
        word, or the next fence below it is a closing one.
        """
        found = _find_blocks(self.action_regex, reply)
        if len(found) == 1 and "```" in self.action_regex:
            after = reply[found[0][1] :]
            if re.match(r"[\w+-]+[ \t]*(\n|$)", after):
                return []
            fence = re.search(r"^```[ \t]*(.*)$", after, re.MULTILINE)
            if fence is not None and not fence.group(1):
                return []
        return [command.strip() for command, _ in found]

    def reply(self, command: str) -> str:
        """Return a reply that asks for `command`. Raises ScaffoldError for an unusable `action_regex`."""
        text = self.action_regex.replace(r"\s*", "").replace(r"[ \t]*", "").replace(r"\n", "\n")
        text = text.replace("(.*?)", command)
        if self.actions(text) != [command.strip()]:
            raise ScaffoldError(f"action_regex {self.action_regex!r} does not find the command in {text!r}")
        return text


def _find_blocks(pattern: str, reply: str) -> list[tuple[str, int]]:
    """Return the group of each match of an `action_regex`, and where the match ends.

    The time grows with the length of the reply for a pattern of a beginning, `(.*?)` and an end: both are
    searched for by themselves. `re` alone would look for an end after every beginning.
    """
    head, group, tail = pattern.partition("(.*?)")
    if not group or not tail or "|" in pattern or "(" in head + tail:
        return [(match.group(1), match.end()) for match in re.finditer(pattern, reply, re.DOTALL)]
    opening, closing = re.compile(head, re.DOTALL), re.compile(tail, re.DOTALL)
    found: list[tuple[str, int]] = []
    position = 0
    while start := opening.search(reply, position):
        begin = start.end()
        end = closing.search(reply, begin)
        if end is None:  # an empty block: the beginning has taken the line break of the end
            end = closing.search(reply, start.start())
            shorter = opening.match(reply, start.start(), end.start()) if end else None
            if end is None or shorter is None:
                break
            begin = shorter.end()
        found.append((reply[begin : end.start()], end.end()))
        position = end.end()
    return found


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a Jinja2 template. Raises ScaffoldError, for example for an undefined variable."""
    try:
        return _compiled(template).render(**variables)
    except jinja2.TemplateError as error:
        raise ScaffoldError(f"a prompt template cannot be rendered: {error}") from error


@functools.lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    return jinja2.Template(template, undefined=jinja2.StrictUndefined)


def load_scaffold(
    name: str,
    *,
    turn_limit: int | None = None,
    time_limit_s: float | None = None,
    command_timeout_s: float | None = None,
) -> Scaffold:
    """Return a shipped scaffold (`default`, `tiny`) or that of a YAML file; arguments override its limits.

    Raises ScaffoldError.
    """
    text = read_shipped("prompts", name, find_shipped("hone.agents", "prompts", ".yaml"), (".yaml", ".yml"))
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScaffoldError(f"{name} is not YAML: {error}") from error
    scaffold = _parse(name, document)
    limits: dict[str, Any] = {
        "step_limit": turn_limit,
        "wall_time_limit_s": time_limit_s,
        "timeout_s": command_timeout_s,
    }
    return replace(scaffold, **{key: limit for key, limit in limits.items() if limit is not None})


def find_shipped(package: str, folder: str, suffix: str) -> dict[str, Path]:
    """Return the files that a package of Hone ships in a folder, by their names without the suffix."""
    files = (resources.files(package) / folder).iterdir()
    paths = sorted(Path(str(file)) for file in files if file.name.endswith(suffix))
    return {path.name.removesuffix(suffix): path for path in paths}


def read_shipped(kind: str, name: str, shipped: Mapping[str, Path], suffixes: tuple[str, ...]) -> str:
    """Return the text of a shipped file, by its name, or of the file at a path. Raises ScaffoldError."""
    path = Path(name)
    if "/" not in name and not name.endswith(suffixes):
        if name not in shipped:
            near = difflib.get_close_matches(name, shipped, n=1, cutoff=0)[0]
            raise ScaffoldError(
                f"no {kind} named {name!r}; did you mean {near!r}? Use one of {', '.join(shipped)}, or a "
                f"path to a file that ends in {suffixes[0]}"
            )
        path = shipped[name]
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScaffoldError(f"cannot read the {kind} in {name}: {error}") from error


def _parse(name: str, document: Any) -> Scaffold:
    if not isinstance(document, dict):
        raise ScaffoldError(
            f"{name}: expected the sections {', '.join(_SECTIONS)}, got {type(document).__name__}"
        )
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    unused: list[str] = []
    for section, content in document.items():
        _known(name, str(section), _SECTIONS)
        if not isinstance(content, dict):
            raise ScaffoldError(f"{name}: {section} must be a mapping, got {type(content).__name__}")
        sections[section] = content
        used = {key for key, places in _TEMPLATES.items() if section in places} | _LIMITS.get(section, set())
        for key in content:
            _known(f"{name}: {section}", str(key), sorted(used | _UNUSED[section]))
        unused += [f"{section}.{key}" for key in content if key in _UNUSED[section]]
    return _scaffold(name, sections, tuple(unused))


def _scaffold(name: str, sections: dict[str, dict[str, Any]], unused: tuple[str, ...]) -> Scaffold:
    agent, environment, model = (sections[section] for section in _SECTIONS)
    generation = 1 if "action_observation_template" in agent else 2

    def template(*places: tuple[dict[str, Any], str], default: str | None = None) -> str | None:
        given = [section[key] for section, key in places if key in section]
        if len(given) > 1:
            raise ScaffoldError(f"{name}: {places[0][1]} is given twice, under agent and under model")
        value = given[0] if given else default
        if value is not None and not isinstance(value, str):
            raise ScaffoldError(f"{name}: {places[0][1]} must be text, got {value!r}")
        return value

    def needed(*places: tuple[dict[str, Any], str]) -> str:
        value = template(*places)
        if value is None:
            raise ScaffoldError(f"{name}: {places[0][1]} is missing")
        return value

    env = environment.get("env", {})
    if not isinstance(env, dict):
        raise ScaffoldError(f"{name}: environment.env must be a mapping, got {env!r}")
    scaffold = Scaffold(
        generation=generation,
        mode=Mode.TEXT if generation == 1 or _asks_for_text(agent, model) else Mode.TOOLS,
        system_template=template((agent, "system_template"), default="") or "",
        instance_template=needed((agent, "instance_template")),
        observation_template=needed((agent, "action_observation_template"), (model, "observation_template")),
        format_error_template=needed((agent, "format_error_template"), (model, "format_error_template")),
        timeout_template=template((agent, "timeout_template")),
        action_regex=template((agent, "action_regex"), (model, "action_regex")) or ACTION_REGEX[generation],
        step_limit=int(_number(name, agent, "step_limit", 0)),
        max_consecutive_format_errors=int(_number(name, agent, "max_consecutive_format_errors", 3)),
        wall_time_limit_s=_number(name, agent, "wall_time_limit_seconds", 0),
        timeout_s=_number(name, environment, "timeout", 30),
        cwd=environment.get("cwd") or None,
        env={str(key): str(value) for key, value in env.items()},
        interpreter=_interpreter(name, environment),
        written=agent | environment | model,
        unused=unused,
    )
    _check(name, scaffold)
    return scaffold


def _asks_for_text(agent: dict[str, Any], model: dict[str, Any]) -> bool:
    """Return whether a 2.x file asks for a block of text rather than for tool calls."""
    if "action_regex" in agent or "action_regex" in model:
        return True
    if str(model.get("model_class", "")).endswith("textbased"):
        return True
    prompts = (agent.get("system_template"), agent.get("instance_template"))
    return any(isinstance(prompt, str) and _TEXT.search(prompt) for prompt in prompts)


def _interpreter(name: str, environment: dict[str, Any]) -> tuple[str, ...]:
    value = environment.get("interpreter", ["bash", "-c"])
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise ScaffoldError(f"{name}: environment.interpreter must be a list of words, got {value!r}")
    return tuple(value)


def _check(name: str, scaffold: Scaffold) -> None:
    try:
        groups = re.compile(scaffold.action_regex).groups
    except re.error as error:
        raise ScaffoldError(f"{name}: action_regex is not a regular expression: {error}") from error
    if groups != 1:
        raise ScaffoldError(f"{name}: action_regex must have one group, the command; it has {groups}")
    if scaffold.written.get("multimodal_regex"):
        raise ScaffoldError(f"{name}: model.multimodal_regex is set, but policies here read text only")
    if scaffold.timeout_s <= 0:
        raise ScaffoldError(f"{name}: environment.timeout must be positive, got {scaffold.timeout_s}")
    for field in ("system", "instance", "observation", "format_error", "timeout"):
        text = getattr(scaffold, f"{field}_template")
        try:
            _compiled(text or "")
        except jinja2.TemplateSyntaxError as error:
            raise ScaffoldError(f"{name}: {field}_template, line {error.lineno}: {error}") from error


def _number(name: str, section: dict[str, Any], key: str, default: float) -> float:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ScaffoldError(f"{name}: {key} must be a number that is not negative, got {value!r}")
    return value


def _known(where: str, key: str, valid: tuple[str, ...] | list[str]) -> None:
    if key in valid:
        return
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0)
    raise ScaffoldError(f"{where}: unknown key {key!r}; did you mean {near[0]!r}?")
