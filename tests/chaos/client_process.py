"""A client that makes one call on a sandbox of a pool: `client_process SETTINGS CALL MARKER`.

It prints a line when the sandbox is ready for the call, makes the call when it reads a line, and prints an
`Ended` when the call has ended. Commands run `sleep MARKER`, by which they are found; what is uploaded is
`files` in the settings' `state_dir`. It ends when its standard input does, having closed its provider.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import BaseModel

from hone.sandbox import Sandbox, SandboxSpec
from hone.sandbox.client.api import connect
from hone.sandbox.client.provider import PoolProvider
from hone.sandbox.remote.server import read_token
from hone.sandbox.remote.wire import OWNER_KEY_HEADER
from hone.sandbox.settings import SandboxSettings
from hone.utils.http_client import new_session

COMMAND_S = 120.0  # that a command may take
_REPOSITORY = "git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty -m first"
_PATCH = "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+line\n"


class Ended(BaseModel):
    """How a call ended: the names of the exception's classes, or none, and what it said or returned."""

    raised: list[str]
    said: str
    seconds: float


async def start(provider: PoolProvider) -> str:
    async with await provider.start(SandboxSpec()) as sandbox:
        return str((await sandbox.exec("true")).exit_code)


async def execute(sandbox: Sandbox, marker: str) -> str:
    return str((await sandbox.exec(["sleep", marker], timeout_s=COMMAND_S)).exit_code)


async def upload(sandbox: Sandbox, source: Path) -> str:
    await sandbox.upload(source, "uploaded")
    return str((await sandbox.exec("cat uploaded/* | wc -c")).text.strip())


async def evaluate(settings: SandboxSettings, lease_id: str, marker: str) -> str:
    """As clients of the SWE env pool server do."""
    assert settings.pool_token_file is not None
    body = Evaluate(lease_id=lease_id, patch=_PATCH, eval_script=f"sleep {marker}").model_dump_json()
    async with new_session() as session:
        pool = connect(session, settings.pool_url, read_token(settings.pool_token_file))
        assert settings.state_dir is not None
        pool.headers[OWNER_KEY_HEADER] = read_token(settings.state_dir / "pool-owner-key")
        reply = await pool.request("POST", "/evaluate", body=body.encode(), timeout_s=2 * COMMAND_S)
    return reply.decode()


class Evaluate(BaseModel):
    lease_id: str
    patch: str
    eval_script: str
    timeout: float = COMMAND_S


async def close(sandbox: Sandbox) -> str:
    await sandbox.close()
    return "closed"


async def prepared(
    provider: PoolProvider, settings: SandboxSettings, call: str, marker: str
) -> Callable[[], Awaitable[str]]:
    """The call, once everything that precedes it is done."""
    if call == "start":
        return lambda: start(provider)
    assert settings.state_dir is not None
    sandbox, source = await provider.start(SandboxSpec()), settings.state_dir / "files"
    match call:
        case "exec":
            return lambda: execute(sandbox, marker)
        case "upload":
            return lambda: upload(sandbox, source)
        case "evaluate":
            assert (await sandbox.exec(_REPOSITORY)).exit_code == 0
            assert sandbox.beat is not None
            lease_id = sandbox.beat.lease_id
            return lambda: evaluate(settings, lease_id, marker)
        case "close":
            return lambda: close(sandbox)
        case _:
            raise ValueError(call)


async def timed(call: Callable[[], Awaitable[str]]) -> Ended:
    began = time.monotonic()
    try:
        said, raised = await call(), []
    except Exception as error:
        said, raised = str(error), [kind.__name__ for kind in type(error).__mro__]
    return Ended(raised=raised, said=said, seconds=time.monotonic() - began)


async def main(written: str, call: str, marker: str) -> None:
    settings = SandboxSettings.model_validate_json(written)
    async with PoolProvider(settings) as provider:
        making = await prepared(provider, settings, call, marker)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print((await timed(making)).model_dump_json(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
