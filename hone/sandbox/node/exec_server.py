"""Endpoints for clients of the SWE exec server, with its fields, defaults and texts.

Unknown fields are ignored. An error is an ErrorBody, of which such clients read `ok` and `error`. Their
sandboxes end after IDLE_S without use, because these clients cannot renew them.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import secrets
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hone.sandbox.contract import DEFAULT_WORKDIR, ExecResult, ProviderUnavailable, Sandbox, TooLarge
from hone.sandbox.node.api import JSON_MAX, Endpoint, require_server_token
from hone.sandbox.node.commands import observe
from hone.sandbox.node.node import Node
from hone.sandbox.node.sandboxes import SandboxEntry
from hone.sandbox.remote.wire import CreateRequest, Environment, InsidePath, Label, Seconds, container_spec
from hone.utils.http_server import presented_token, read_model, while_connected

IDLE_S = 3600.0
EVALUATE_MAX = 8 << 20  # bytes of an evaluation, most of them its patch
SCRIPT_MAX = 1 << 20  # characters of a script
PATCH_MAX = 64 << 20  # bytes of a diff
GIT_S = 60.0
EVALUATE_CHARS = 2000
_COMMAND = re.compile(r"^[ \t]*+[^ \t\n#]", re.MULTILINE)
_APPLY = "git reset --hard HEAD && git clean -fd && git apply"


class Create(BaseModel):
    image: str
    cwd: InsidePath = DEFAULT_WORKDIR
    timeout: Seconds = 120


class Of(BaseModel):
    container_id: Label


class Call(Of):
    """A call that runs in a sandbox."""

    cwd: InsidePath = ""
    timeout: Seconds = GIT_S


class Exec(Call):
    command: str
    timeout: Seconds = 180
    env: Environment = {}


class Evaluate(Call):
    patch: str = ""
    eval_script: Annotated[str, Field(max_length=SCRIPT_MAX)] = ""
    timeout: Seconds = 3600


CallBody = TypeVar("CallBody", bound=Call)
Reply = dict[str, object]


def make_routes(node: Node) -> list[Route]:
    trusted = require_server_token(node)

    async def images(request: Request) -> Response:
        names = node.probe.images
        return JSONResponse({"ok": True, "images": names, "count": len(names)})

    async def status(request: Request) -> Response:
        containers = {entry.id: _facts(entry) for entry in node.sandboxes}
        return JSONResponse({"ok": True, "active_containers": len(containers), "containers": containers})

    async def create(request: Request) -> Response:
        payload = await read_model(request, Create, JSON_MAX)
        entry = await while_connected(request.receive, _create(node, payload))
        return JSONResponse({"ok": True, "container_id": entry.id, "name": _name(entry)})

    def call(
        model: type[CallBody],
        run: Callable[[Node, Sandbox, CallBody], Coroutine[Any, Any, Reply]],
        limit: int = JSON_MAX,
    ) -> Endpoint:
        """Return an endpoint that runs in a sandbox, and is cancelled when its client disconnects."""

        async def endpoint(request: Request) -> Response:
            node.sandboxes.require_known(presented_token(request))  # before a body of any size
            payload = await read_model(request, model, limit)
            entry = node.sandboxes.find(payload.container_id, presented_token(request))
            sandbox = node.sandboxes.use(entry, GIT_S + payload.timeout)
            return JSONResponse(await while_connected(request.receive, run(node, sandbox, payload)))

        return endpoint

    async def destroy(request: Request) -> Response:
        node.sandboxes.require_known(presented_token(request))
        payload = await read_model(request, Of, JSON_MAX)
        await node.sandboxes.end(node.sandboxes.find(payload.container_id, presented_token(request)))
        return JSONResponse({"ok": True})

    return [
        Route("/images", trusted(images)),
        Route("/status", trusted(status)),
        Route("/container/create", trusted(create), methods=["POST"]),
        Route("/container/exec", call(Exec, _exec), methods=["POST"]),
        Route("/container/diff", call(Call, _diff), methods=["POST"]),
        Route("/container/evaluate", call(Evaluate, _evaluate, EVALUATE_MAX), methods=["POST"]),
        Route("/container/destroy", destroy, methods=["POST"]),
    ]


def _name(entry: SandboxEntry) -> str:
    return f"swe-{entry.id[:12]}"


def _facts(entry: SandboxEntry) -> dict[str, str]:
    began = datetime.datetime.fromtimestamp(entry.created_at, datetime.UTC)
    image = entry.request.spec.image.removeprefix("docker://")
    return {"name": _name(entry), "image": image, "created_at": began.isoformat(timespec="seconds")}


async def _create(node: Node, payload: Create) -> SandboxEntry:
    spec = container_spec(payload.image, workdir=payload.cwd, cpus=float(os.cpu_count() or 1))
    try:
        async with asyncio.timeout(payload.timeout):
            return await node.sandboxes.create(CreateRequest(spec=spec, ttl_s=IDLE_S), idle_s=IDLE_S)
    except TimeoutError:
        raise ProviderUnavailable(
            f"the container did not start within {payload.timeout:g} s", retryable=True
        ) from None


async def _exec(node: Node, sandbox: Sandbox, payload: Exec) -> Reply:
    result = await sandbox.exec(
        ["bash", "-lc", payload.command], timeout_s=payload.timeout, cwd=payload.cwd or None, env=payload.env
    )
    observe(node.metrics, result)
    return {"ok": True, "returncode": result.exit_code, "output": _ended(result, payload.timeout)}


async def _diff(node: Node, sandbox: Sandbox, payload: Call) -> Reply:
    patch = bytearray()  # never truncated: half a patch is worse than none

    def collect(stream: str, data: bytes) -> None:
        if stream == "stdout" and len(patch) <= PATCH_MAX:
            patch.extend(data)

    command = ["bash", "-lc", "git add -A && git diff --cached"]
    result = await sandbox.exec(command, timeout_s=GIT_S, cwd=payload.cwd or None, on_output=collect)
    observe(node.metrics, result)
    if len(patch) > PATCH_MAX:
        raise TooLarge(f"the patch is larger than {PATCH_MAX >> 20} MiB")
    return {
        "ok": True,
        "patch": _text(bytes(patch)),
        "returncode": result.exit_code,
        "error": _late(GIT_S) if result.timed_out else _text(result.stderr),
    }


async def _evaluate(node: Node, sandbox: Sandbox, payload: Evaluate) -> Reply:
    if not _has_command(payload.eval_script):
        raise ValueError("eval_script has no command, so there is nothing to judge the patch by")
    if not _is_patch(payload.patch):
        return _unresolved("the patch is not a git patch")
    cwd = payload.cwd or None
    applied = await sandbox.exec(
        ["bash", "-lc", _APPLY], timeout_s=GIT_S, cwd=cwd, stdin=payload.patch.encode()
    )
    if applied.exit_code != 0:
        return _unresolved(f"the patch does not apply: {_ended(applied, GIT_S)[-EVALUATE_CHARS:]}")
    script = f"/tmp/hone-evaluate-{secrets.token_hex(8)}.sh"  # noqa: S108 (inside the sandbox)
    await sandbox.write(script, payload.eval_script.encode())
    result = await sandbox.exec(["bash", "-l", script], timeout_s=payload.timeout, cwd=cwd)
    ended = _ended(result, payload.timeout)
    observe(node.metrics, result)
    return {
        "ok": True,
        "resolved": result.exit_code == 0,
        "returncode": result.exit_code,
        "output": ended[-EVALUATE_CHARS:],
    }


def _unresolved(error: str) -> Reply:
    return {"ok": True, "resolved": False, "error": error}


def _has_command(script: str) -> bool:
    """Whether bash would run anything: it skips blanks, comments, continued line ends and NUL characters."""
    return _COMMAND.search(script.replace("\0", "").replace("\\\n", "")) is not None


def _is_patch(patch: str) -> bool:
    """Whether a text has a git header and the names of an old and a new side."""
    return all(
        any(patch.startswith(beginning) or f"\n{beginning}" in patch for beginning in beginnings)
        for beginnings in (("diff --git ",), ("--- a/", "--- /dev/null"), ("+++ b/", "+++ /dev/null"))
    )


def _ended(result: ExecResult, timeout_s: float) -> str:
    """Return stdout and stderr, or a sentence for a command that timed out."""
    return _late(timeout_s) if result.timed_out else _text(result.stdout + result.stderr)


def _late(timeout_s: float) -> str:
    return f"Command timed out after {timeout_s:g}s"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
