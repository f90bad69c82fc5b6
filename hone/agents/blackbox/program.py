"""The TOML description of a command-line agent: its installation, its command, its exit rules.

Every text in it is a Jinja2 template over `PLACEHOLDERS`. Unknown keys and placeholders are errors when the
file is read.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from hone.agents.scaffold import ScaffoldError, find_shipped, read_shipped
from hone.outcomes import Outcome
from hone.sandbox.contract import Limits
from hone.settings import Settings

LAYERS = "/srv/hone/agents"  # inside: where layers are shown, each below the program's name

PLACEHOLDERS: Mapping[str, Any] = {
    "problem": "the task's statement",
    "workdir": "/testbed",
    "prompt": "the rendered `run.prompt`, which cannot name itself",
    "prompt_file": "/tmp/.agent/prompt.txt",  # noqa: S108 - inside
    "base_url": "http://127.0.0.1:1/s/key/v1",
    "key": "the capability of this rollout's session",
    "model": "policy",
    "home": "/tmp/.agent",  # noqa: S108 - inside
    "layer": f"{LAYERS}/name",
    "turn_limit": 0,  # 0: none
    "max_prompt_tokens": 1,  # leaves room for a whole reply
}
"""Name -> an example value, used to check templates."""


def _from_file(value: Any, info: ValidationInfo) -> Any:
    """Resolve a path relative to the TOML file; leave an address as it is."""
    if not str(value) or str(value).startswith("https://"):
        return value
    return type(value)(Path(str(info.context)) / value)


LocalPath = Annotated[Path, AfterValidator(_from_file)]
Source = Annotated[str, AfterValidator(_from_file)]


class NpmInstall(Settings):
    """A package of the npm registry, without its optional dependencies and install scripts."""

    kind: Literal["npm"]
    """Installation method."""
    package: str
    """Its name, such as `@qwen-code/qwen-code`."""
    version: str = Field(pattern=r"^\d+\.\d+\.\d+[\w.+-]*$")
    """Its exact version."""
    integrity: str = Field(pattern=r"^sha512-[A-Za-z0-9+/]+=*$")
    """The digest of its archive: the output of `npm view PACKAGE@VERSION dist.integrity`."""
    lock: LocalPath | None = None
    """A package-lock.json, for a package that depends on others; `npm ci` installs it exactly. Relative to
    the TOML file."""


class PipInstall(Settings):
    """Python packages in their own directory, with their own interpreter."""

    kind: Literal["pip"]
    """Installation method."""
    requirements: LocalPath
    """A requirements.txt with the version and the hashes of every package and dependency (made by `uv pip
    compile --generate-hashes`). Relative to the TOML file."""


class ArchiveInstall(Settings):
    """A tar archive, compressed or not."""

    kind: Literal["archive"]
    """Installation method."""
    source: Source
    """An https:// address, or a path relative to the TOML file."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The digest of the archive."""


class DirectoryInstall(Settings):
    """A directory of this machine, copied unchanged."""

    kind: Literal["directory"]
    """Installation method."""
    source: LocalPath
    """The directory, relative to the TOML file."""


Install = Annotated[NpmInstall | PipInstall | ArchiveInstall | DirectoryInstall, Field(discriminator="kind")]


class Runtime(Settings):
    """The interpreter of the tools, with its shared libraries, so that images need none."""

    program: Literal["node", "python3"]
    """`node`: the first on PATH of the machine that builds the layer. `python3`: the interpreter that runs
    Hone, or this machine's of `version` if that is newer. In the sandbox: `{{ layer }}/bin/node` or
    `{{ layer }}/bin/python3`."""
    version: str = Field(default="", pattern=r"^(\d+(\.\d+)*)?$")
    """The oldest version that works, such as `20` or `3.12`; default: any."""
    archive: Source = ""
    """Of `node`: an archive with bin/node that replaces this machine's; an https:// address, or a path
    relative to the TOML file."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The digest of `archive`."""

    @model_validator(mode="after")
    def _archive_is_pinned(self) -> Runtime:
        if bool(self.archive) != bool(self.sha256):
            raise ValueError("archive and sha256 must be set together")
        if self.archive and self.program != "node":
            raise ValueError("only node can come from an archive")
        return self


class Run(Settings):
    """The command of one rollout."""

    command: tuple[str, ...] = Field(min_length=1)
    """The argument list; run in the task's workdir, as the sandbox's user."""
    protocol: Literal["command", "acp"] = "command"
    """How the agent gets its prompt and ends: `command`, by its arguments and its exit code; `acp`, by the
    Agent Client Protocol on its standard input and output."""
    prompt: str
    """The agent's instructions; may use `{{ problem }}` and `{{ workdir }}`. Other texts name it
    `{{ prompt }}`; the file `{{ prompt_file }}` holds it, too."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Environment variables of the command, added to the sandbox's own; none comes from the host."""
    model: str = "policy"
    """The model's name for the agent, `{{ model }}`; the gateway serves only one model."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds until the first request to the model; a program without one counts as unable to start."""
    memory_mib: int = Field(default=0, ge=0)
    """Memory that it needs in addition to the task; a sandbox with a lower limit is refused."""
    pids: int = Field(default=0, ge=0)
    """Processes and threads that it needs; a sandbox with a lower limit is refused."""


class File(Settings):
    """A file that is written before the command runs."""

    path: str
    """Its path, such as `{{ home }}/settings.json`; outside the workdir, as it would be part of the patch."""
    text: str
    """Its content."""


class Exit(Settings):
    """An exit rule. The first that matches counts; a command that matches none has failed."""

    ending: Literal[
        "submitted", "turn_limit", "token_limit", "time_limit", "context_limit", "format_limit", "failed"
    ]
    """The meaning. `failed` counts against the policy, which had replied before the program broke."""
    code: int | None = None
    """The exit code; default: any."""
    output: str = ""
    """A regular expression that its standard output or standard error contains; default: any."""

    @field_validator("output")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from error
        return value

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome; None for a submission."""
        if self.ending == "submitted":
            return None
        return Outcome.BROKE_SANDBOX if self.ending == "failed" else Outcome(self.ending)


class Program(Settings):
    """A command-line agent."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """The name of the program, its layer and its records."""
    wire: Literal["openai", "responses", "anthropic", "google"]
    """Its API: OpenAI's chat completions or responses (`{{ base_url }}` ends with /v1), Anthropic's messages
    or Google's generateContent (no /v1)."""
    install: Install
    """The installation of its tools."""
    runtime: Runtime | None = None
    """Their interpreter; default: none."""
    run: Run
    """The command of one rollout."""
    files: tuple[File, ...] = ()
    """Files written before the command runs."""
    exits: tuple[Exit, ...] = ()
    """Exit rules, tried in this order; none with the protocol `acp`, where no exit is a submission."""

    @model_validator(mode="after")
    def _exits_fit_the_protocol(self) -> Program:
        if self.run.protocol == "acp" and self.exits:
            raise ValueError(
                "with the protocol acp an agent ends by its answer to the prompt: remove the exits"
            )
        if self.run.protocol == "command" and not self.exits:
            raise ValueError("a command needs exit rules: say which exit code is a submission")
        return self

    @property
    def layer(self) -> str:
        """Return the path of its layer in sandboxes."""
        return f"{LAYERS}/{self.name}"

    def require_room(self, limits: Limits) -> None:
        """Raise ScaffoldError if sandboxes with these limits have too little memory or too few processes."""
        for name in ("memory_mib", "pids"):
            needed, given = getattr(self.run, name), getattr(limits, name)
            if given < needed:
                raise ScaffoldError(
                    f"{self.name} needs {name} = {needed} in addition to the task, but sandboxes have "
                    f"{given}: raise sandbox.{name}"
                )

    def ending(self, code: int, *outputs: str) -> Outcome | None:
        """Return the outcome of an exit; None for a submission."""
        for exit in self.exits:
            if exit.code in (None, code) and any(re.search(exit.output, output) for output in outputs):
                return exit.outcome
        return Outcome.BROKE_SANDBOX


_MODELS = (Program, NpmInstall, PipInstall, ArchiveInstall, DirectoryInstall, Runtime, Run, File, Exit)
_KEYS = sorted({name for model in _MODELS for name in model.model_fields})


def presets() -> list[str]:
    """Return the names of the programs that Hone ships."""
    return list(_shipped())


def load_program(name: str) -> Program:
    """Return a preset, or the program of the TOML file at a path. Raises ScaffoldError with one sentence."""
    shipped = _shipped()
    text = read_shipped("program", name, shipped, (".toml",))
    folder = shipped.get(name, Path(name)).parent.absolute()
    try:
        program = Program.model_validate(tomllib.loads(text), context=str(folder))
    except tomllib.TOMLDecodeError as error:
        raise ScaffoldError(f"{name} is not TOML: {error}") from error
    except ValidationError as error:
        raise ScaffoldError(f"{name}: {_describe(error)}") from error
    _check_templates(name, program)
    return program


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return the rendered template. Raises TemplateError for an unknown placeholder."""
    return jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(
        values
    )


def _shipped() -> dict[str, Path]:
    return find_shipped("hone.agents.blackbox", "presets", ".toml")


def _check_templates(name: str, program: Program) -> None:
    """Render every template once, before any rollout. Raises ScaffoldError for one that does not render."""
    templates = {"run.prompt": program.run.prompt}
    templates |= {f"run.command[{i}]": text for i, text in enumerate(program.run.command)}
    templates |= {f"run.env.{key}": text for key, text in program.run.env.items()}
    for i, file in enumerate(program.files):
        templates |= {f"files[{i}].path": file.path, f"files[{i}].text": file.text}
    for where, text in templates.items():
        try:
            fill(text, PLACEHOLDERS)
        except jinja2.TemplateError as error:
            raise ScaffoldError(
                f"{name}: {where}: {error}; the placeholders are {', '.join(PLACEHOLDERS)}"
            ) from error


def _describe(error: ValidationError) -> str:
    """Return the first error as a sentence; an unknown key comes before the missing key that it causes."""
    errors = error.errors()
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    path = [part for part in first["loc"] if part not in ("npm", "pip", "archive", "directory")]
    where = ".".join(map(str, path))
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _KEYS, n=1, cutoff=0)[0]
        return f"unknown key {where!r}; did you mean {near!r}?"
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return f"{where}.kind must be npm, pip, archive or directory"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
