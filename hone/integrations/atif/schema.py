"""The parts of ATIF documents that Hone reads, of every version up to 1.8."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hone.utils.errors import HoneError

SCHEMA = "ATIF-v1.8"
READ = tuple(f"ATIF-v1.{minor}" for minor in range(9))
FORMAT = "hone-atif-1"  # of `extra.hone`
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Content = str | list[dict[str, Any]] | None


class AtifError(HoneError):
    """A file is not an ATIF trajectory that Hone reads; the message says why."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Agent(_Part):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class Metrics(_Part):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_token_ids: list[TokenId] | None = None
    completion_token_ids: list[TokenId] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class WrittenRouting(_Part):
    dtype: Literal["int8", "int16"]
    shape: list[int]
    base64: str


class WrittenNode(BaseModel):
    """A node of the token tree in `extra.nodes`."""

    model_config = ConfigDict(extra="ignore", strict=True)

    index: int
    parent: int | None
    turn: Int32
    sampled: bool
    length: int  # tokens
    tokens: list[TokenId] | None = None  # of a node that no step holds
    version: list[Int32] = Field(default_factory=list[int])
    routing: WrittenRouting | None = None


class ToolCall(_Part):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class Result(_Part):
    source_call_id: str | None = None
    content: Content = None


class Observation(_Part):
    results: list[Result]


class Step(_Part):
    source: Literal["system", "user", "agent"]
    message: Content
    timestamp: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None


class Document(_Part):
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    session_id: str | None = None
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[Document] | None = None


def parse(data: Any) -> Document:
    """Return the document in decoded JSON. Raises AtifError with the first field that is wrong."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version not in READ:
        raise AtifError(
            f"`schema_version` is {version!r}, but Hone reads {READ[0]} to {READ[-1]}: pass a trajectory in "
            "one of these versions"
        )
    try:
        return Document.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise AtifError(
            f"`{where}` is wrong ({first['msg'].lower()}): fix the file, or make it again"
        ) from None
