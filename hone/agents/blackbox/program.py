"""What a command-line agent is, as a TOML file says it: how its tools are had, how it is run, how it ends.

Every text in it is a Jinja2 template over `PLACEHOLDERS`; a name that is not among them is an error when the
file is read, as is a key that means nothing.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import jinja2
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from hone.agents.scaffold import ScaffoldError
from hone.outcomes import Outcome
from hone.sandbox.contract import Limits
from hone.settings import Settings

LAYERS = "/srv/hone/agents"  # inside: where layers are shown, each below the program's name

PLACEHOLDERS: Mapping[str, Any] = {
    "problem": "the task's statement",
    "workdir": "/testbed",
    "prompt": "the rendered `run.prompt`; not in itself",
    "prompt_file": "/tmp/.agent/prompt.txt",  # noqa: S108 - inside
    "base_url": "http://127.0.0.1:1/s/key/v1",
    "key": "the capability of this rollout's session",
    "model": "policy",
    "home": "/tmp/.agent",  # noqa: S108 - inside
    "layer": f"{LAYERS}/name",
    "turn_limit": 0,  # 0: none
    "max_prompt_tokens": 1,  # the longest prompt that leaves room for a whole reply
}
"""Name -> an example, by which templates are tried out."""


def _from_file(value: Any, info: ValidationInfo) -> Any:
    """A relative path begins at the TOML file; an address stays."""
    if not str(value) or str(value).startswith("https://"):
        return value
    return type(value)(Path(str(info.context)) / value)


LocalPath = Annotated[Path, AfterValidator(_from_file)]
Source = Annotated[str, AfterValidator(_from_file)]


class NpmInstall(Settings):
    """A package of the npm registry, without its optional dependencies and install scripts."""

    kind: Literal["npm"]
    """How the tools are had."""
    package: str
    """Its name, such as `@qwen-code/qwen-code`."""
    version: str = Field(pattern=r"^\d+\.\d+\.\d+[\w.+-]*$")
    """Its exact version."""
    integrity: str = Field(pattern=r"^sha512-[A-Za-z0-9+/]+=*$")
    """The digest of its archive, as `npm view PACKAGE@VERSION dist.integrity` tells it."""
    lock: LocalPath | None = None
    """A package-lock.json, for a package that depends on others; installed exactly, by `npm ci`. A relative
    path begins at the TOML file."""


class PipInstall(Settings):
    """Python packages in a folder of their own, beside the interpreter that comes with them."""

    kind: Literal["pip"]
    """How the tools are had."""
    requirements: LocalPath
    """A requirements.txt with the version and the hashes of every package, dependencies included (made by
    `uv pip compile --generate-hashes`). A relative path begins at the TOML file."""


class ArchiveInstall(Settings):
    """A tar archive, compressed or not."""

    kind: Literal["archive"]
    """How the tools are had."""
    source: Source
    """An https:// address, or a path, which begins at the TOML file."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The digest of the archive."""


class DirectoryInstall(Settings):
    """A directory of this machine, copied as it is."""

    kind: Literal["directory"]
    """How the tools are had."""
    source: LocalPath
    """The directory. A relative path begins at the TOML file."""


Install = Annotated[NpmInstall | PipInstall | ArchiveInstall | DirectoryInstall, Field(discriminator="kind")]


class Runtime(Settings):
    """The interpreter that runs the tools, with its shared libraries, so that an image needs none."""

    program: Literal["node", "python3"]
    """`node`: the one on PATH of the machine that builds the layer. `python3`: the interpreter that runs
    Hone. Inside it is `{{ layer }}/bin/node` or `{{ layer }}/bin/python3`."""
    version: str = Field(default="", pattern=r"^(\d+(\.\d+)*)?$")
    """The oldest version that will do, such as `20`; default: any."""
    archive: Source = ""
    """Of `node`: an archive with bin/node to take in place of this machine's; an https:// address, or a
    path, which begins at the TOML file."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The digest of `archive`."""

    @model_validator(mode="after")
    def _archive_is_pinned(self) -> Runtime:
        if bool(self.archive) != bool(self.sha256):
            raise ValueError("archive and sha256 go together")
        if self.archive and self.program != "node":
            raise ValueError("only node is taken from an archive")
        return self


class Run(Settings):
    """The command of one rollout."""

    command: tuple[str, ...] = Field(min_length=1)
    """The argument list; run in the task's workdir, as the sandbox's user."""
    prompt: str
    """What the agent is told; may use `{{ problem }}` and `{{ workdir }}`. It is `{{ prompt }}` elsewhere,
    and the content of the file `{{ prompt_file }}`."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Variables of the command, over the sandbox's own. Nothing of the host's is among them."""
    model: str = "policy"
    """What the agent calls the model, `{{ model }}`; the gateway has only one."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds in which it must have asked the model for the first time; else it counts as one that cannot
    start here."""
    memory_mib: int = Field(default=0, ge=0)
    """Memory that it needs beside the task's own; a sandbox with a lower limit is refused."""
    pids: int = Field(default=0, ge=0)
    """Processes and threads that it needs; a sandbox with a lower limit is refused."""


class File(Settings):
    """A file that is written before the command runs."""

    path: str
    """Where, such as `{{ home }}/settings.json`; not in the workdir, for there it would be in the patch."""
    text: str
    """Its content."""


_ENDINGS = {
    "submitted": None,
    "turn_limit": Outcome.TURN_LIMIT,
    "token_limit": Outcome.TOKEN_LIMIT,
    "time_limit": Outcome.TIME_LIMIT,
    "context_limit": Outcome.CONTEXT_LIMIT,
    "format_limit": Outcome.FORMAT_LIMIT,
    "failed": Outcome.BROKE_SANDBOX,
}


class Exit(Settings):
    """A way in which the command may end. The first one that fits counts; where none does, it failed."""

    ending: Literal[
        "submitted", "turn_limit", "token_limit", "time_limit", "context_limit", "format_limit", "failed"
    ]
    """What it means. `failed` is the policy's doing: it had its say before the program broke."""
    code: int | None = None
    """The exit code; default: any."""
    output: str = ""
    """A regular expression that is found in its standard output, or in its standard error; default: any."""

    @field_validator("output")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @property
    def outcome(self) -> Outcome | None:
        """None: it submitted."""
        return _ENDINGS[self.ending]


class Program(Settings):
    """A command-line agent."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Its name: of its layer, in sandboxes and in records."""
    wire: Literal["openai", "responses", "anthropic"]
    """What it speaks: OpenAI's chat completions or responses (`{{ base_url }}` ends with /v1), or Anthropic's
    messages (it does not)."""
    install: Install
    """How its tools are had."""
    runtime: Runtime | None = None
    """What runs them; default: they run by themselves."""
    run: Run
    """How it is run."""
    files: tuple[File, ...] = ()
    """What it finds written."""
    exits: tuple[Exit, ...] = Field(min_length=1)
    """How it may end, in this order."""

    @property
    def layer(self) -> str:
        """Where its tools are inside."""
        return f"{LAYERS}/{self.name}"

    def require_room(self, limits: Limits) -> None:
        """Raise ScaffoldError unless sandboxes with these limits have room for it."""
        for name in ("memory_mib", "pids"):
            needed, given = getattr(self.run, name), getattr(limits, name)
            if given < needed:
                raise ScaffoldError(
                    f"{self.name} needs {name} = {needed} beside what tasks need, and sandboxes have "
                    f"{given}: raise sandbox.{name}"
                )

    def ending(self, code: int, *outputs: str) -> Outcome | None:
        """What an exit means; None: it submitted."""
        for exit in self.exits:
            if exit.code in (None, code) and any(re.search(exit.output, output) for output in outputs):
                return exit.outcome
        return Outcome.BROKE_SANDBOX


def presets() -> list[str]:
    """The names of the programs that come with Hone."""
    names = (file.name for file in _shipped().iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_program(name: str) -> Program:
    """Read a preset, or the TOML file at a path. Raises ScaffoldError: one sentence, where and why."""
    if not name:
        raise ScaffoldError(
            f"no program is named: set agent.program to {' or '.join(presets())}, or to a path to a TOML file"
        )
    path = Path(name)
    if "/" not in name and not name.endswith(".toml"):
        path = Path(str(_shipped())) / f"{name}.toml"
        if not path.is_file():
            near = difflib.get_close_matches(name, presets(), n=1, cutoff=0)[0]
            raise ScaffoldError(
                f"no program named {name!r}; did you mean {near!r}? There are {', '.join(presets())}, and "
                "paths to a TOML file"
            )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScaffoldError(f"cannot read the program in {name}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ScaffoldError(f"{name} is not TOML: {error}") from error
    try:
        program = Program.model_validate(document, context=str(path.parent.absolute()))
    except ValidationError as error:
        raise ScaffoldError(f"{name}: {_sentence(error)}") from error
    _rehearse(name, program)
    return program


def fill(template: str, values: Mapping[str, Any]) -> str:
    """A template with its placeholders filled in; a name that is not among `values` is a TemplateError."""
    return jinja2.Template(template, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(
        values
    )


def _shipped() -> Any:
    return resources.files("hone.agents.blackbox") / "presets"


def _rehearse(name: str, program: Program) -> None:
    """Render every template once, so that one that cannot be rendered is found before any rollout."""
    spelled = {"run.prompt": program.run.prompt}
    spelled |= {f"run.command[{i}]": text for i, text in enumerate(program.run.command)}
    spelled |= {f"run.env.{key}": text for key, text in program.run.env.items()}
    for i, file in enumerate(program.files):
        spelled |= {f"files[{i}].path": file.path, f"files[{i}].text": file.text}
    for where, text in spelled.items():
        try:
            fill(text, PLACEHOLDERS)
        except jinja2.TemplateError as error:
            raise ScaffoldError(
                f"{name}: {where}: {error}; the placeholders are {', '.join(PLACEHOLDERS)}"
            ) from error


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong; a misspelt key tells more than the one that is missing for it."""
    errors = error.errors()
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    path = [part for part in first["loc"] if part not in ("npm", "pip", "archive", "directory")]
    where = ".".join(map(str, path))
    if first["type"] == "extra_forbidden":
        near = _nearest(str(path[-1]), *_models(list(first["loc"][:-1])))
        return f"unknown key {where!r}; did you mean {near!r}?"
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return f"{where}.kind must be npm, pip, archive or directory"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def _nearest(key: str, *models: type[Settings]) -> str:
    valid = [name for model in models for name in model.model_fields]
    return difflib.get_close_matches(key, valid, n=1, cutoff=0)[0]


def _models(path: list[int | str]) -> list[type[Settings]]:
    """The models that a part of the file, named as pydantic names it, may be."""
    models: list[type[Settings]] = [Program]
    for part in path:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if fields:
            models = [model for field in fields for model in _inside(field.annotation)]
        elif isinstance(part, str):  # the tag of a union
            models = [model for model in models if part in get_args(model.model_fields["kind"].annotation)]
    return models


def _inside(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _inside(argument)
