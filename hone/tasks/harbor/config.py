"""`task.toml` of a Harbor task, schema 1.4: every field, and nothing else.

What Hone's sandboxes cannot serve is refused by name in `hone.tasks.harbor.serve`, not here.
"""

from __future__ import annotations

import re
import reprlib
import tomllib
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from hone.tasks.errors import TaskError

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_STEP = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
NetworkMode = Literal["public", "no-network", "allowlist"]
Seconds = float


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Author(_Table):
    name: str
    email: str | None = None


class Package(_Table):
    name: str
    version: str | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError("must be ORGANISATION/NAME")
        return name


class Solution(_Table):
    env: dict[str, str] = Field(default_factory=dict)


class Phase(_Table):
    """Fields of `[agent]` and of `[verifier]`."""

    timeout_sec: Seconds | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None


class Healthcheck(_Table):
    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Seconds = 0.0
    start_interval_sec: Seconds = 5.0
    retries: int = 3


class Tpu(_Table):
    type: str
    topology: str


class McpServer(_Table):
    name: str
    transport: str = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict)


class Environment(_Table):
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: tuple[str, ...] | None = None
    tpu: Tpu | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] | None = None
    allow_internet: bool | None = None  # of older schemas: false is "no-network"
    memory: str | None = None  # of older schemas, such as "2G"
    storage: str | None = None

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @property
    def network(self) -> NetworkMode:
        old = self.allow_internet is False and "network_mode" not in self.model_fields_set
        return "no-network" if old else self.network_mode


class Collect(_Table):
    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: str | int | None = None


class Verifier(Phase):
    timeout_sec: Seconds | None = Field(default=600.0, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: tuple[Collect, ...] = ()

    @model_validator(mode="after")
    def _check_mode(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('has an environment, so environment_mode cannot be "shared"')
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """The mode as written or implied; None: that of the task, by default "shared"."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


def _check_source(value: str) -> str:
    if ".." in PurePosixPath(value).parts:
        raise ValueError("must not contain '..'")
    return value


Source = Annotated[str, AfterValidator(_check_source)]


class Artifact(_Table):
    source: Source
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None


class Step(_Table):
    name: str
    agent: Phase = Phase()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Source | Artifact, ...] = ()

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _STEP.fullmatch(name):
            raise ValueError("must be a plain name, which is that of a directory below steps/")
        return name


class TaskConfig(_Table):
    """The whole file."""

    schema_version: str = SCHEMA_VERSIONS[-1]
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: Verifier = Verifier()
    agent: Phase = Phase()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[Step, ...] | None = None
    artifacts: tuple[Source | Artifact, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _rename_version(cls, data: Any) -> Any:
        """Read `version` of older schemas as `schema_version`."""
        if isinstance(data, dict) and "version" in data and "schema_version" not in data:
            return {**{k: v for k, v in data.items() if k != "version"}, "schema_version": data["version"]}
        return data

    @field_validator("schema_version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if version not in SCHEMA_VERSIONS:
            raise ValueError(f"Hone reads {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]}")
        return version

    @model_validator(mode="after")
    def _check_hosts(self) -> TaskConfig:
        phases: list[tuple[str, Phase | Environment]] = [
            ("agent", self.agent), ("verifier", self.verifier), ("environment", self.environment),
        ]  # fmt: skip
        for name, phase in phases:
            if phase.allowed_hosts is not None and phase.network_mode != "allowlist":
                raise ValueError(f'{name}.allowed_hosts needs {name}.network_mode = "allowlist"')
        names = [step.name.lower() for step in self.steps or ()]
        if len(set(names)) < len(names):
            raise ValueError("two steps have the same name")
        return self


def parse_config(text: str) -> TaskConfig:
    """Return the configuration in the text of a task.toml. Raises TaskError, one sentence."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"its task.toml is not valid TOML: {error}") from None
    try:
        return TaskConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if "[" not in str(part)) or "task.toml"
        if first["type"] == "extra_forbidden":
            raise TaskError(f"its task.toml has the unknown key `{where}`; Hone reads schema 1.4") from None
        message = first["msg"].removeprefix("Value error, ")
        raise TaskError(f"its task.toml: `{where}` {message}, got {reprlib.repr(first['input'])}") from None
