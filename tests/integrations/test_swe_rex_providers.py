"""Sessions of SWE-ReX on the providers with an engine or servers between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from swerex.exceptions import CommandTimeoutError
from swerex.runtime.abstract import BashAction, BashInterruptAction, CreateBashSessionRequest, UploadRequest

from hone.integrations.swe_rex.deployment import HoneDeployment
from tests.services.image import BASE_IMAGE
from tests.services.servers import node_server, pool_server

pytestmark = [pytest.mark.full, pytest.mark.sandbox]
TIMEOUT_S = 120.0


@pytest.fixture
def docker_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    engine = request.getfixturevalue("docker")
    return {
        "provider": "docker",
        "docker_url": engine.url,
        "docker_image": BASE_IMAGE,
        "start_timeout_s": 120,
    }


@pytest.fixture
def pool_settings(tmp_path: Path) -> Generator[dict[str, Any]]:
    token_file, node_token_file = tmp_path / "token", tmp_path / "node-token"
    for file in (token_file, node_token_file):
        file.write_text(f"the-{file.name}")
        file.chmod(0o600)
    with (
        node_server(node_token_file, "namespaces") as node,
        pool_server(token_file, node_token_file, node) as pool,
    ):
        yield {"provider": "pool", "pool_url": pool, "pool_token_file": token_file}


@pytest.mark.parametrize("kind", ["docker", "pool"])
def test_sessions_work_through_an_engine_and_a_pool(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    settings = {**request.getfixturevalue(f"{kind}_settings"), "state_dir": tmp_path / "state"}
    (tmp_path / "tool").write_text("tool\n")
    deployment = HoneDeployment(sandbox=settings)

    def run(command: str, **fields: Any) -> str:
        action = BashAction(command=command, **{"timeout": TIMEOUT_S, **fields})
        return asyncio.run(deployment.runtime.run_in_session(action)).output

    asyncio.run(deployment.start())
    try:
        asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
        run("export A=3; cd /usr; f() { echo f $A; }")
        assert run("f; pwd") == "f 3\n/usr\n"
        assert run("seq 1 100000").splitlines() == [str(number) for number in range(1, 100001)]
        with pytest.raises(CommandTimeoutError):
            run("sleep 1000", timeout=0.5)
        asyncio.run(deployment.runtime.run_in_session(BashInterruptAction(timeout=TIMEOUT_S)))
        prompt = {"is_interactive_command": True, "expect": [">>> "]}
        run("python3", **prompt)
        assert run("print('a' * 3)", **prompt) == "aaa"
        run("quit()", is_interactive_quit=True)
        upload = UploadRequest(source_path=str(tmp_path / "tool"), target_path="/tmp/tool")
        asyncio.run(deployment.runtime.upload(upload))
        assert run("cat /tmp/tool; f") == "tool\nf 3\n"
    finally:
        asyncio.run(deployment.stop())
