"""Clients of the SWE exec server: its endpoints, fields, defaults and texts, over real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from urllib.request import HTTPError, Request, urlopen

import pytest

from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.node.served import TOKEN, served

pytestmark = pytest.mark.sandbox

REPOSITORY = """
git init -q . && git config user.name a && git config user.email a@b
printf 'one\\n' > f && git add . && git commit -qm one
"""
PATCH = """diff --git a/f b/f
--- a/f
+++ b/f
@@ -1 +1 @@
-one
+two
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node in a thread of its own, so that these clients are as plain as any."""
    state = tmp_path_factory.mktemp("state")
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        provider = make_provider(SandboxSettings(state_dir=state / "provider"))
        async with contextlib.AsyncExitStack() as stack:
            address = await stack.enter_async_context(served(provider, state / "node"))
            stop = asyncio.Event()
            ready.set_result((address, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    address, loop, stop = ready.result(120)
    yield address
    loop.call_soon_threadsafe(stop.set)
    thread.join(120)
    assert not thread.is_alive()


def ask(url: str, path: str, body: dict[str, Any] | None = None, token: str = TOKEN) -> dict[str, Any]:
    """One request; a reply with an error has its status as `status`."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{url}{path}", data, {"Content-Type": "application/json"})
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=120) as response:
            return json.loads(response.read())
    except HTTPError as error:
        return {**json.loads(error.read()), "status": error.code}


@pytest.fixture
def container(url: str) -> Iterator[str]:
    made = ask(url, "/container/create", {"image": "host"})
    yield made["container_id"]
    ask(url, "/container/destroy", {"container_id": made["container_id"]})


def run(url: str, container: str, command: str, **fields: object) -> dict[str, Any]:
    return ask(url, "/container/exec", {"container_id": container, "command": command, **fields})


def test_a_container_is_created_listed_and_destroyed(url: str) -> None:
    made = ask(url, "/container/create", {"image": "host", "cwd": "/work", "timeout": 60})
    assert made["ok"]
    assert made["name"].startswith("swe-")
    assert len(made["name"]) == 4 + 12
    status = ask(url, "/status")
    assert status["active_containers"] == 1
    facts = status["containers"][made["container_id"]]
    assert (facts["name"], facts["image"]) == (made["name"], "host")
    assert facts["created_at"]
    assert ask(url, "/healthz", token="")["running_containers"] == "1"
    assert ask(url, "/images") == {"ok": True, "images": ["host"], "count": 1}
    assert run(url, made["container_id"], "pwd")["output"] == "/work\n"
    assert ask(url, "/container/destroy", {"container_id": made["container_id"]}) == {"ok": True}
    assert ask(url, "/status")["active_containers"] == 0
    gone = run(url, made["container_id"], "true")
    assert (gone["ok"], gone["status"]) == (False, 410)


def test_a_command_gives_its_code_and_stdout_before_stderr(url: str, container: str) -> None:
    reply = run(url, container, "echo e >&2; echo o; exit 3")
    assert reply == {"ok": True, "returncode": 3, "output": "o\ne\n"}
    assert run(url, container, "pwd; echo $A", env={"A": "b"})["output"] == "/testbed\nb\n"
    assert run(url, container, "pwd", cwd="/tmp", unknown="field")["output"] == "/tmp\n"
    assert run(url, container, "shopt login_shell")["output"].split() == ["login_shell", "on"]
    assert run(url, container, "printf '\\377'")["output"] == "\ufffd"


def test_a_command_that_times_out_is_no_error(url: str, container: str) -> None:
    reply = run(url, container, "echo early; sleep 100", timeout=1)
    assert reply == {"ok": True, "returncode": -1, "output": "Command timed out after 1s"}
    assert run(url, container, "pgrep sleep")["output"] == ""


def test_a_diff_has_new_and_changed_files_whole(url: str, container: str) -> None:
    run(url, container, REPOSITORY)
    run(url, container, "echo two > f; seq 400000 > long")
    reply = ask(url, "/container/diff", {"container_id": container})
    assert (reply["ok"], reply["returncode"], reply["error"]) == (True, 0, "")
    assert reply["patch"].startswith("diff --git a/f b/f\n")
    assert len(reply["patch"]) > 2_500_000
    assert "+400000\n" in reply["patch"]
    assert "+123456\n" in reply["patch"]
    broken = ask(url, "/container/diff", {"container_id": container, "cwd": "/"})
    assert broken["returncode"] != 0
    assert "not a git repository" in broken["error"]


def test_evaluation_resets_applies_and_runs_the_script(url: str, container: str) -> None:
    run(url, container, REPOSITORY)
    run(url, container, "echo junk > f; echo junk > junk")
    script = "seq 3000; cat f; ls; read x || echo no input; grep -q two f"
    body = {"container_id": container, "patch": PATCH, "eval_script": script}
    reply = ask(url, "/container/evaluate", body)
    assert (reply["ok"], reply["resolved"], reply["returncode"]) == (True, True, 0)
    assert reply["output"].endswith("\n3000\ntwo\nf\nno input\n")
    assert len(reply["output"]) == 2000
    reply = ask(url, "/container/evaluate", {**body, "eval_script": "exit 4"})
    assert (reply["ok"], reply["resolved"], reply["returncode"]) == (True, False, 4)
    reply = ask(url, "/container/evaluate", {**body, "eval_script": "sleep 100", "timeout": 1})
    assert (reply["resolved"], reply["returncode"]) == (False, -1)
    assert reply["output"] == "Command timed out after 1s"


@pytest.mark.parametrize(
    "script", [None, "", " \t\n", "#!/bin/bash\n# pytest\n", "\\\n\\\n", "#\n\0\n", "\\\n # \0x"]
)
def test_script_without_a_command_gives_no_verdict(url: str, container: str, script: str | None) -> None:
    run(url, container, REPOSITORY)
    body = {"container_id": container, "patch": PATCH} | ({} if script is None else {"eval_script": script})
    reply = ask(url, "/container/evaluate", body)
    assert (reply["ok"], reply["status"]) == (False, 400)
    assert "eval_script" in reply["error"]
    assert "resolved" not in reply


@pytest.mark.parametrize("script", ["#!/bin/bash\n\n grep -q two f # control\n", "\\\ntrue", "\ttrue #"])
def test_script_with_comments_and_a_command_gives_a_verdict(url: str, container: str, script: str) -> None:
    run(url, container, REPOSITORY)
    body = {"container_id": container, "patch": PATCH, "eval_script": script}
    assert ask(url, "/container/evaluate", body)["resolved"]


@pytest.mark.parametrize(
    "patch",
    ["", "not a patch", PATCH.replace("--- a/f", "--- f"), PATCH.replace("diff --git", "diff"), PATCH * 2],
)
def test_invalid_or_unapplicable_patch_is_unresolved(url: str, container: str, patch: str) -> None:
    run(url, container, REPOSITORY)
    body = {"container_id": container, "patch": patch, "eval_script": "touch /tmp/ran"}
    reply = ask(url, "/container/evaluate", body)
    assert (reply["ok"], reply["resolved"]) == (True, False)
    assert reply["error"]
    assert run(url, container, "test -e /tmp/ran")["returncode"] == 1


def test_a_patch_longer_than_a_command_line_is_evaluated(url: str, container: str) -> None:
    run(url, container, REPOSITORY)
    lines = "".join(f"+{number:0100d}\n" for number in range(20_000))
    head = "diff --git a/g b/g\nnew file mode 100644\n--- /dev/null\n+++ b/g\n@@ -0,0 +1,20000 @@\n"
    body = {"container_id": container, "patch": head + lines, "eval_script": "test $(wc -l < g) = 20000"}
    assert ask(url, "/container/evaluate", body)["resolved"]


@pytest.mark.full
def test_a_bare_name_is_an_image_of_a_registry(url: str) -> None:
    reply = ask(url, "/container/create", {"image": "localhost:1/no/such:image"})
    assert not reply["ok"]
    assert "localhost:1/no/such:image" in reply["error"]
    for image in ("rootfs:/", "docker://localhost:1/x"):
        reply = ask(url, "/container/create", {"image": image})
        assert not reply["ok"], image
    assert ask(url, "/status")["active_containers"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/container/create", {}),
        ("/container/exec", {"command": "true"}),
        ("/container/exec", {"container_id": "x"}),
        ("/container/exec", {"container_id": "x", "command": "true", "timeout": 0}),
        ("/container/destroy", {}),
    ],
)
def test_error_names_the_missing_or_wrong_field(url: str, path: str, body: dict[str, Any]) -> None:
    reply = ask(url, path, body)
    assert (reply["ok"], reply["status"]) == (False, 400)
    assert reply["error"]
