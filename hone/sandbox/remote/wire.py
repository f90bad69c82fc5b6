"""The JSON that clients, the pool server and node servers exchange (version 1).

Every error reply is an `ErrorBody`, with the HTTP status of its code. Bytes travel as base64 in JSON;
files and archives travel as raw bodies. The endpoints that clients of the SWE exec server and the SWE env
pool server use (`/container/exec`, `/allocate`, ...) exist beside these, with their own documented fields.

Node server                                     pool server
    POST   /v1/sandboxes           create           POST   /v1/leases           allocate, or wait in the queue
    PUT    /v1/sandboxes/ID/content/DIGEST  put     POST   /v1/heartbeats       renew many at once
    POST   /v1/sandboxes/ID/start  start            GET    /v1/leases/ID        look
    GET    /v1/sandboxes/ID/tunnel WebSocket
    POST   /v1/sandboxes/ID/exec   run              DELETE /v1/leases/ID?generation=   close
    DELETE /v1/sandboxes/ID/exec   cancel           DELETE /v1/owners/OWNER     close all leases of an owner
    GET    /v1/sandboxes/ID/files?path=     read    GET    /v1/status           nodes, leases, queue
    PUT    /v1/sandboxes/ID/files?path=&mode=       POST   /v1/nodes            add; also drain and resume
    PUT    /v1/sandboxes/ID/archive?path=   upload  DELETE /v1/nodes?url=&force=   remove
    GET    /v1/sandboxes/ID/archive?path= download  GET    /healthz  /metrics
    DELETE /v1/sandboxes/ID        close
    DELETE /v1/sandboxes           undo a create
    POST   /v1/renewals            keep alive
    GET    /v1/node                what it has
    GET    /healthz  /metrics

A sandbox's own endpoints accept its capability as bearer token, all others the server's token. A pool has
two: clients present its client token; /v1/nodes accepts the nodes' token alone. Clients with the same token
are strangers to each other: a lease that was requested with a `Hone-Owner-Key` serves requests with the same
key, and the status names a lease and its owner to that owner and to the holder of the nodes' token.

A request that creates something carries the header `Idempotency-Key`; repeating it returns the first reply.
Cancelling a command and undoing a create use the same key, even before the request arrives.

Directories of the client's machine (`SandboxSpec.layer`, `.mounts`) are named by the digest of their archive
(`hone.sandbox.trees`). A sandbox whose spec names any is created without being started: the client requests
the start, uploads the missing digests in the reply, and requests it again. A node keeps uploads for later
sandboxes while there is room.

The standard input of a command is in its JSON, or follows it in the body as it is: the header
`Hone-Input-Bytes` then says how many bytes of the body it takes.

Each connection of a sandbox's tunnel travels over a WebSocket of its own (`hone.sandbox.remote.tunnel`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from hone.sandbox.contract import DEFAULT_WORKDIR, PATH_MAX, TIMEOUT_MAX_S, ImageProblem, Limits

IDEMPOTENCY_HEADER = "Idempotency-Key"
OWNER_KEY_HEADER = "Hone-Owner-Key"
INPUT_HEADER = "Hone-Input-Bytes"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # SHA-256
# Every number and string is finite. Those that name no bound here are bounded by the body of their request.
Seconds = Annotated[float, Field(gt=0, le=TIMEOUT_MAX_S)]  # of a timeout or a time to live
Elapsed = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # seconds
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Label = Annotated[str, Field(max_length=256)]
InsidePath = Annotated[str, Field(max_length=PATH_MAX)]
Environment = Annotated[dict[str, str], Field(max_length=4096)]


class Wire(BaseModel):
    """Base of all models; unknown fields are errors.

    Bytes are base64 (URL-safe alphabet, RFC 4648) in JSON only, which `model_validate_json` and
    `model_dump_json` read and write.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class ErrorBody(Wire):
    ok: Literal[False] = False
    error: str  # one sentence
    code: str  # of the exception's class, or "os_error", "bad_request", "internal"
    retryable: bool
    problem: ImageProblem | Literal[""] = ""  # of ImageUnavailable
    errno: int = 0  # of "os_error"


class MountBody(Wire):
    """`hone.sandbox.Mount`: read-only inside."""

    content: Digest
    target: InsidePath


class SpecBody(Wire):
    """`hone.sandbox.SandboxSpec` without snapshots, which exist on the client's machine only."""

    image: Annotated[str, Field(max_length=1024)] = "host"
    workdir: InsidePath = ""
    layer: Digest | None = None
    env: Environment = {}
    mounts: Annotated[tuple[MountBody, ...], Field(max_length=256)] = ()
    limits: Limits = Limits()
    run: Label = ""
    network: Annotated[tuple[Label, ...], Field(max_length=256)] = ()
    tunnel: bool = False  # to a unix socket of the client's machine; the client attaches to .../tunnel

    def contents(self) -> set[str]:
        """Return the digests of the contents that it needs on the node."""
        return {mount.content for mount in self.mounts} | ({self.layer} if self.layer else set())


def container_spec(image: str, *, workdir: str = DEFAULT_WORKDIR, cpus: float = 1.0) -> SpecBody:
    """Return the spec of a container for clients of the SWE servers; a plain name is an image of a registry.

    Those servers have no limits for disk and output.
    """
    is_reference = image == "host" or image.startswith("docker://")
    return SpecBody(
        image=image if is_reference else f"docker://{image}",
        workdir=workdir,
        limits=Limits(memory_mib=4096, pids=256, cpus=cpus, disk_mib=8192, output_kib=1024),
    )


# --- node server


class CreateRequest(Wire):
    spec: SpecBody
    ttl_s: Seconds = 120.0  # the sandbox expires when it is not renewed within this
    lease: Label = ""  # the lease it serves, and its generation; "" for a client without a pool
    generation: Count = 0


class CreateReply(Wire):
    ok: Literal[True] = True
    id: str
    capability: str  # bearer token of this sandbox's endpoints, and of nothing else
    workdir: str  # "" and {} until it is started, where its spec names content
    enforced: dict[str, str]


class StartReply(Wire):
    """POST /v1/sandboxes/ID/start: the missing digests, or the facts of the running sandbox."""

    ok: Literal[True] = True
    missing: list[str]
    workdir: str
    enforced: dict[str, str]


class ExecRequest(Wire):
    command: str | Annotated[list[str], Field(max_length=1 << 18)]
    timeout_s: Seconds = 60.0
    cwd: InsidePath | None = None
    env: Environment = {}
    stdin: bytes = b""
    merge_stderr: bool = False
    stream: bool = False  # reply in lines: OutputLine as output arrives, then the ExecReply or ErrorBody


class OutputLine(Wire):
    stream: Literal["stdout", "stderr"]
    data: bytes


class ExecReply(Wire):
    """`hone.sandbox.ExecResult`."""

    ok: Literal[True] = True
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
    stdout: bytes
    stderr: bytes
    stdout_bytes: Count
    stderr_bytes: Count
    timed_out: bool
    seconds: Elapsed


EXEC_LINE: TypeAdapter[OutputLine | ExecReply | ErrorBody] = TypeAdapter(
    Annotated[OutputLine | ExecReply | ErrorBody, Field(union_mode="left_to_right")]
)  # a line of a streamed reply


class RenewRequest(Wire):
    """POST /v1/renewals of a node, from the pool or from a client without one."""

    ids: list[Label] = Field(max_length=10_000)
    ttl_s: Seconds


class RenewReply(Wire):
    """Of a node or the pool."""

    ok: Literal[True] = True
    lost: list[str]  # ids that a node does not have; that ended, or are of another generation


class SandboxRow(Wire):
    id: str
    image: str
    run: str
    lease: str
    generation: Count
    age_s: Elapsed
    expires_in_s: Elapsed


class NodeReply(Wire):
    """GET /v1/node"""

    ok: Literal[True] = True
    provider: str
    boot: str  # new at every start of the server
    capacity: Count  # sandboxes at a time
    memory_mib: Count  # of the machine
    free_memory_mib: Count
    images: list[str]  # unpacked or pulled here
    sandboxes: list[SandboxRow]
    accepting: bool  # False while it shuts down


# --- pool server


class LeaseRequest(Wire):
    lease_id: Name  # chosen by the client, so that a lost reply can be asked for again or closed
    owner: Name  # the client process; its leases can be closed together
    spec: SpecBody
    ttl_s: float = Field(default=60.0, ge=1.0, le=86_400.0)
    wait_s: float = Field(default=300.0, ge=0.0, le=86_400.0)  # in the queue, before QueueTimeout


class LeaseReply(Wire):
    ok: Literal[True] = True
    lease_id: str
    generation: int
    node_url: str
    sandbox_id: str
    capability: str
    workdir: str
    enforced: dict[str, str]
    expires_in_s: float


class Beat(Wire):
    lease_id: Name
    generation: int


class HeartbeatRequest(Wire):
    leases: list[Beat] = Field(max_length=10_000)


class NodeRequest(Wire):
    """POST /v1/nodes: add a node, or change how one is used."""

    url: str
    max_sandboxes: int = Field(default=0, ge=0)  # 0: what the node itself says
    state: Literal["active", "draining"] = "active"


class NodeRow(Wire):
    url: str
    state: Literal["active", "draining", "quarantined", "unreachable"]
    active: int
    starting: int
    capacity: int
    free_memory_mib: int
    images: int
    start_ms_p50: float
    failures: int
    why: str  # of a state that is not active


class LeaseRow(Wire):
    lease_id: str
    generation: int
    owner: str
    run: str
    image: str
    state: str
    node_url: str
    age_s: float
    expires_in_s: float


class StatusReply(Wire):
    ok: Literal[True] = True
    nodes: list[NodeRow]
    leases: list[LeaseRow]
    queued: dict[str, int]  # run -> requests that wait
    totals: dict[str, int]  # allocated, closed, expired, lost, refused since the store was made
