"""The plug-in in the real verifiers: rewards by Hone's grading, faults as errors."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.formats import save
from tests.rollout.real import gold, tasks

VERIFIERS = os.environ.get("HONE_TEST_VERIFIERS_PYTHON", "")  # of an environment with Hone and verifiers
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.sandbox,
    pytest.mark.skipif(not VERIFIERS, reason="HONE_TEST_VERIFIERS_PYTHON names no Python with verifiers"),
]


@pytest.fixture
def endpoint() -> Generator[tuple[str, dict[str, list[str]]]]:
    """An OpenAI-compatible server that answers a task's statement with the commands listed for it."""
    scripts: dict[str, list[str]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = sum(message["role"] == "assistant" for message in asked["messages"])
            commands = next(each for text, each in scripts.items() if text in json.dumps(asked["messages"]))
            self.answer(reply(commands[min(turn, len(commands) - 1)], asked))

        def answer(self, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", scripts
    server.shutdown()
    server.server_close()


def reply(command: str, asked: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": f"I act.\n\n```bash\n{command}\n```"}
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }


def test_rewards_are_gradings_and_faults_are_errors(tmp_path: Path, endpoint: Any) -> None:
    url, scripts = endpoint
    right, wrong, breaks, fault, ungradable = (
        dataclasses.replace(task, problem=f"case {number}: {task.problem}")
        for number, task in enumerate(tasks(5))
    )
    fault = dataclasses.replace(
        fault, environment=dataclasses.replace(fault.environment, image="rootfs:/nowhere")
    )
    broken_tests = dict.fromkeys(ungradable.checks.test_files, "def (")
    checks = dataclasses.replace(ungradable.checks, test_files=broken_tests, controls=())
    ungradable = dataclasses.replace(ungradable, checks=checks)
    save([right, wrong, breaks, fault, ungradable], tmp_path / "tasks.jsonl")
    scripts["case 0"] = ["ls", gold(right), SUBMIT]
    scripts["case 1"] = ["echo x > new.txt", SUBMIT]
    scripts["case 2"] = ["rm -rf .git; git init -q; echo x > new.txt", "true"]  # up to the turn limit
    scripts["case 3"] = [SUBMIT]
    scripts["case 4"] = [gold(ungradable), SUBMIT]
    subprocess.run(
        [
            Path(VERIFIERS).parent / "vf-eval",
            *("hone-verifiers", "-m", "m", "--client.base-url", url, "--no-push", "-o", tmp_path / "out"),
            *("--env.taskset.tasks", tmp_path / "tasks.jsonl", "--env.agent.harness.turn-limit", "4"),
        ],
        check=True,
        timeout=500,
    )
    (traces,) = (tmp_path / "out").glob("*/traces.jsonl")
    episodes = {e["task"]["data"]["id"]: e for e in map(json.loads, traces.read_text().splitlines())}
    assert resolved(episodes[right.id]) == (True, "resolved", 1.0)
    assert resolved(episodes[wrong.id]) == (True, "unresolved", 0.0)
    assert resolved(episodes[breaks.id]) == (True, "turn_limit", 0.0)
    for task, message in ((fault, "nowhere"), (ungradable, "grader_error")):
        assert episodes[task.id]["ok"] is False
        assert message in episodes[task.id]["errors"][0]["message"]
        assert all(not trace["rewards"] for trace in episodes[task.id]["traces"])
    (trace,) = episodes[ungradable.id]["traces"]
    assert "grader_error" in trace["errors"][0]["message"]
    assert not any(secret in traces.read_text() for secret in ("fail_to_pass", "gold_patch"))


def resolved(episode: dict[str, Any]) -> tuple[bool, str, float]:
    (trace,) = episode["traces"]
    return episode["ok"], trace["info"]["hone"]["outcome"], trace["rewards"]["resolved"]["score"]
