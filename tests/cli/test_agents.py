from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hone.cli import main

TOML = """
name = "tool"
wire = "openai"
[install]
kind = "directory"
source = "tools"
[run]
command = ["{{ layer }}/app/tool"]
prompt = ""
[[exits]]
ending = "submitted"
"""


def hone(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["hone", *arguments])
    return main()


def test_tools_are_installed_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tool.toml").write_text(TOML)
    assert hone("agents", "prepare", str(tmp_path / "tool.toml"), monkeypatch=monkeypatch) == 1
    assert f"hone: {tmp_path / 'tools'} is not a directory" in capsys.readouterr().err
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool").touch()
    assert hone("agents", "prepare", str(tmp_path / "tool.toml"), monkeypatch=monkeypatch) == 0
    name, _, place = capsys.readouterr().out.strip().partition(": ")
    assert name == "tool"
    assert (Path(place) / "app" / "tool").is_file()
    assert Path(place).parent == tmp_path / "cache" / "hone" / "agents"


def test_agents_list_shows_built_in_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert hone("agents", "list", "--json", monkeypatch=monkeypatch) == 0
    rows = {row["agent"]: row["tools"] for row in json.loads(capsys.readouterr().out)}
    assert rows["mini-swe-agent"] == "not prepared"
    assert rows["qwen-code"].startswith("node is not on this machine's PATH")
