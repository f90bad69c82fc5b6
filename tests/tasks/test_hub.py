"""Data sets by name: from a server that speaks the hub's protocol, through the libraries that people use."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.files import read_source, write_rows

pytest.importorskip("datasets")
pytestmark = pytest.mark.slow  # starts servers and imports their client in processes

NAME, SHA = "me/Mine_Verified", "a" * 40
ROW: dict[str, Any] = {
    "repo": "a/b",
    "base_commit": "1" * 40,
    "problem_statement": "Broken: \r\n ü",
    "FAIL_TO_PASS": '["t.py::t"]',
    "PASS_TO_PASS": ["t.py::u"],
    "hints_text": None,
}


class Hub(http.server.BaseHTTPRequestHandler):
    """One data set: what it is, what lies in it, and its files."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        about, resolve = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(f"{about}/tree/"):
            inside = path.endswith("/data")
            files = [
                {"type": "file", "path": p, "size": len(c), "oid": "b" * 40} for p, c in self.files.items()
            ]
            self._json(
                files if inside else [{"type": "directory", "path": "data", "size": 0, "oid": "c" * 40}]
            )
        elif path == about or path.startswith(f"{about}/revision/"):
            siblings = [{"rfilename": path} for path in self.files]
            self._json(
                {"id": NAME, "sha": SHA, "siblings": siblings, "private": False, "gated": False, "tags": []}
            )
        elif path.startswith(resolve):
            content = self.files.get(path.removeprefix(resolve).partition("/")[2])
            if content is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._send(200, content, {"ETag": f'"{len(content)}"', "X-Repo-Commit": SHA})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that takes the server for the hub."""
    folder = tmp_path_factory.mktemp("hub")
    Hub.files = {}
    for split, numbers in (("test", range(3)), ("dev", range(3, 5))):
        shard = folder / f"{split}-00000-of-00001.parquet"
        write_rows([{"instance_id": f"a__b-{i}", **ROW} for i in numbers], shard)
        Hub.files[f"data/{shard.name}"] = shard.read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(folder / "home")}
    yield {**os.environ, **place, "HF_HUB_DISABLE_TELEMETRY": "1"}
    server.shutdown()
    server.server_close()


# In a process of its own: the libraries read the hub's address when they are loaded.
COMMANDS = """
import contextlib, io, json, sys
from hone.cli import main
for arguments in json.loads(sys.stdin.read()):
    sys.argv, said, warned = ["hone", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
        code = main()
    print(json.dumps([code, said.getvalue(), warned.getvalue()]))
"""


def hone(environment: dict[str, str], out: Path, *sources: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """How the import of each source ended: exit code, standard output, standard error."""
    common = ["--format", "swe-bench", "-o", str(out)]
    commands = [["tasks", "import", *source, *common] for source in sources]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(commands),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.full
def test_hub_data_set_is_imported(hub: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    names = [(NAME, "--split", "train"), (NAME,), ("me/absent", "--split", "test"), (NAME, "--split", "test")]
    *wrong, right = hone(hub, out, *names)
    assert [code for code, _, _ in wrong] == [1, 1, 1]
    told = [
        f'cannot read the data set {NAME}: Unknown split "train"',
        f"the data set {NAME} has several sets: choose one with --split: ",
        f"{hub['HF_ENDPOINT']} has no data set me/absent",
    ]
    for sentence, (_, _, warned) in zip(told, wrong, strict=True):
        assert warned.startswith(f"hone: {sentence}")
        assert warned.count("\n") == 1
    assert right == (0, f"{out}: 3 tasks; 0 rows refused, 0 repeated.\n", "")
    tasks = [json.loads(line) for line in out.read_text().splitlines()]
    assert [task["metadata"]["row"] for task in tasks] == [
        {"instance_id": f"a__b-{i}", **ROW} for i in range(3)
    ]


@pytest.mark.full
def test_unreachable_hub_is_an_error(hub: dict[str, str], tmp_path: Path) -> None:
    ((code, _, warned),) = hone(
        {**hub, "HF_HUB_OFFLINE": "1"}, tmp_path / "out", ("me/other", "--split", "test")
    )
    assert code == 1
    assert warned.startswith(f"hone: cannot reach {hub['HF_ENDPOINT']} for the data set me/other")
    assert "give a file of it instead" in warned


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        TaskError, match=r"install the `datasets` library \(pip install 'hone-rl\[datasets\]'\)"
    ):
        list(read_source(NAME, "test"))


def test_local_path_precedes_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows([ROW], tmp_path / NAME / "test-00000-of-00001.parquet")
    assert list(read_source(NAME, "test")) == [ROW]
    for absent in ("rows/absent.jsonl", "absent", "a/b/c"):
        with pytest.raises(TaskError, match=f"cannot read rows from {absent}: No such file"):
            list(read_source(absent))
