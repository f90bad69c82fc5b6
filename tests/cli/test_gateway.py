"""`hone gateway`, as a process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.in_process import hone

pytestmark = pytest.mark.slow  # starts servers
HONE = str(Path(sys.executable).with_name("hone"))
BODY = {"model": "m", "messages": [{"role": "user", "content": "Fix it."}]}


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_text('{"content": "first"}\n{"content": "second"}\n')
    return path


@contextmanager
def gateway(*words: str) -> Iterator[list[str]]:
    """The lines that it prints; it is stopped with Ctrl-C, and must end well."""
    process = subprocess.Popen([HONE, "gateway", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


def found(pattern: str, lines: list[str]) -> str:
    match = re.search(pattern, "".join(lines))
    assert match is not None, lines
    return match.group(1)


def test_client_connects_with_the_printed_values(script):
    words = ("--engine", f"scripted:{script}", "--port", "0", "--calls", "1")
    with gateway(*words) as lines, httpx.Client(timeout=60) as http:
        root = found(r"listening on (\S+)", lines)
        base = found(r"OPENAI_BASE_URL=(\S+)", lines)
        anthropic = found(r"ANTHROPIC_BASE_URL=(\S+)", lines)
        response = http.post(f"{base}/chat/completions", json=BODY)
        assert response.json()["choices"][0]["message"]["content"] == "first"
        other = {"messages": [*BODY["messages"], {"role": "user", "content": "Again."}]}
        assert http.post(f"{anthropic}/v1/messages", json=other).status_code == 403  # one call, no more
        created = http.post(f"{root}/sessions", json={"limits": {"calls": 2}}).json()
        assert created["limits"]["calls"] == 2
        replies = [
            http.post(f"{root}{created['path']}/chat/completions", json=body).json() for body in (BODY, other)
        ]
        assert [r["choices"][0]["message"]["content"] for r in replies] == ["first", "second"]
        assert http.post(f"{root}/sessions", json={"limits": {"call": 2}}).status_code == 400
        listed = http.get(f"{root}/sessions").json()["sessions"]
        assert [(session["calls"], session["ended"]) for session in listed] == [(1, "calls"), (2, None)]
        assert created["key"] not in json.dumps(listed)
        tree = http.get(f"{root}/sessions/{created['id']}/tree").json()
        sampled = [node for node in tree["nodes"] if node["sampled"]]
        assert [len(node["logprobs"]) for node in sampled] == [len(node["tokens"]) for node in sampled]
        assert [call["node"] for call in tree["calls"]] == [
            i for i, node in enumerate(tree["nodes"]) if node["sampled"]
        ]
        assert [call["purpose"] for call in tree["calls"]] == ["main", "main"]
        assert http.delete(f"{root}/sessions/{created['id']}").status_code == 200
        assert http.get(f"{root}/sessions/{created['id']}/tree").status_code == 404
        assert http.post(f"{root}{created['path']}/chat/completions", json=BODY).status_code == 401


def test_sessions_need_the_token_on_socket_and_port(script, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    token.chmod(0o600)
    path = tmp_path / "gateway.sock"
    words = ("--engine", f"scripted:{script}", "--socket", str(path))
    for more, expected in (((), None), (("--token-file", str(token)), "secret-token")):
        with gateway(*words, *more) as lines:
            given = found(r"Bearer ([^\"]+)", lines)
            assert expected in (None, given)
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
            ) as client:
                assert client.get("/sessions").status_code == 401
                assert client.get("/sessions", headers={"Authorization": "Bearer wrong"}).status_code == 401
                allowed = client.get("/sessions", headers={"Authorization": f"Bearer {given}"})
                assert len(allowed.json()["sessions"]) == 1
        assert not path.exists()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--engine", "scripted:x.jsonl"), 2, "--port or --socket"),
        (("--engine", "nonsense", "--port", "0"), 2, "neither a URL nor scripted:FILE"),
        (("--engine", "scripted:missing.jsonl", "--port", "0"), 1, "missing.jsonl cannot be read"),
        (("--engine", "http://127.0.0.1:1", "--port", "0"), 1, "pass --model"),
        (("--engine", "scripted:{script}", "--port", "0", "--host", "0.0.0.0"), 1, "loopback only"),
        (
            ("--engine", "scripted:{script}", "--port", "0", "--model", "missing"),
            1,
            "no model folder missing",
        ),
    ],
)
def test_unusable_options_give_one_sentence(script, words, code, sentence):
    words = tuple(word.replace("{script}", str(script)) for word in words)
    done = hone("gateway", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
