"""`hone view` as a user meets it."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.cli.fake_run import make_run
from tests.cli.in_process import hone


def test_atif_files_become_pages(tmp_path: Path) -> None:
    hone("trajectory", "export", make_run(tmp_path / "run"), "--format", "atif", "-o", tmp_path / "atif")
    done = hone("view", *sorted((tmp_path / "atif").iterdir()), "--export", tmp_path / "pages")
    assert done.returncode == 0, done.stderr
    assert f"open {tmp_path / 'pages' / 'index.html'}" in done.stdout
    pages = [page.read_text() for page in (tmp_path / "pages").rglob("index.html")]
    assert sum("<h2>Conversation</h2>" in page for page in pages) == 5


def test_a_run_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = hone("view", tmp_path / "gone")
    assert done.returncode == 2
    assert f"there is no {tmp_path / 'gone'}" in done.stderr


def test_a_taken_port_and_an_open_address_are_refused_in_a_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = hone("view", run, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "give another --port" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    exposed = hone("view", run, "--host", "0.0.0.0")
    assert exposed.returncode == 1
    assert "--token-file" in exposed.stderr
