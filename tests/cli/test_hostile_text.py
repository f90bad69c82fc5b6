"""Text of a model, a sandbox or a server cannot command the terminal of its reader."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.syntax import Syntax
from rich.text import Text

from hone.cli import main
from hone.cli.output import print_fields, print_table
from hone.launch.reporter import TerminalReporter
from hone.outcomes import Outcome
from hone.rollout.store import Store
from hone.types import Signal, TestStatus, Verdict
from hone.utils.terminal import SafeConsole, SafeFormatter
from tests.cli.fake_run import make_run, trajectory

ATTACK = (
    "x\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0=\x07\x1b]8;;http://a/\x1b\\y\x1b[31m\x9b2J\x1bPq\x1b\\"
    "\rover\b\b\x7f\x0c\x0b\x00\u202egnp\u2066\u200b\u2028z"
)
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]")
STYLE = re.compile(r"\x1b\[[\d;]*m")
hostile = st.text(st.characters(exclude_categories=())) | st.just(ATTACK)


@pytest.mark.parametrize("terminal", [False, True])
def test_show_prints_hidden_characters_of_a_rollout_as_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    base = trajectory("attack", Outcome.RESOLVED)
    turn = dataclasses.replace(base.turns[0], reply=ATTACK, observation=f"green\n{ATTACK}", action=ATTACK)
    made = dataclasses.replace(
        base,
        turns=(turn,),
        messages=({"role": ATTACK, "content": ATTACK}, {"role": "assistant", "content": ATTACK}),
        patch=f"diff --git a/x b/x\n+{ATTACK}\n",
        verdict=Verdict(resolved=True, tests={ATTACK: TestStatus.PASSED}, score=1.0, tampered=ATTACK),
        error=ATTACK,
        timings={ATTACK: 1.0},
        signals=(Signal(turn=0, kind=ATTACK, command=ATTACK),),
    )
    run = make_run(tmp_path / "run")
    name = f"{run}/{Store(run / 'rollouts').save(made, group=9, index=9)}"
    monkeypatch.setattr(sys, "argv", ["hone", "show", name])
    monkeypatch.setenv("COLUMNS", "400")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert main() == 0
    out = capsys.readouterr().out
    assert out.count(r"\x1b[2J") >= 8
    assert out.count(r"\x1b[31m") >= 8  # a colour of the attacker's is no colour
    assert not COMMANDS.search(STYLE.sub("", out) if terminal else out)
    assert bool(STYLE.search(out)) is terminal


@given(hostile)
def test_every_renderable_prints_hidden_characters_as_escapes(text: str) -> None:
    out = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=300)
    for renderable in (Text(text), Syntax(text, "diff"), text):
        out.print(renderable, markup=False)
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert not COMMANDS.search(STYLE.sub("", shown))
    shown.encode()  # lone surrogates, too


def test_fields_tables_and_markup_of_a_server_stay_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({ATTACK: ATTACK, "[link=http://a]x[/link]": "[bold]y[/bold]"})
    print_table(["a", "b"], [[ATTACK, 1]], title="t")
    out = capsys.readouterr().out
    assert not COMMANDS.search(out)
    assert "[link=http://a]x[/link]" in out
    assert "[bold]y[/bold]" in out


def test_progress_prints_hidden_characters_as_escapes() -> None:
    log = io.StringIO()
    console = SafeConsole(file=log, width=400, force_terminal=True, color_system=None)
    with TerminalReporter(console) as reporter, reporter.stage(ATTACK, 1) as stage:
        stage.set_status(ATTACK)
        stage.advance()
        reporter.note(ATTACK)
    assert "\x1b]" not in log.getvalue()
    assert "\x1b[31m" not in log.getvalue()
    assert r"\x1b]52" in log.getvalue()


def test_error_and_traceback_print_hidden_characters_as_escapes() -> None:
    command = [Path(sys.executable).with_name("hone"), "--debug", "show", "no\x1b[2J\x9b2J\u202erun"]
    for words in (command, [command[0], *command[2:]]):
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert ran.returncode != 0
        assert r"no\x1b[2J\x9b2J\u202erun" in ran.stderr
        assert not COMMANDS.search(ran.stderr)


def test_log_record_prints_hidden_characters_as_escapes() -> None:
    try:
        raise ValueError(ATTACK)
    except ValueError:
        record = logging.LogRecord("hone", logging.WARNING, "", 0, "%s", (ATTACK,), sys.exc_info())
    assert not COMMANDS.search(SafeFormatter().format(record))


def test_honest_text_and_styles_are_printed_unchanged() -> None:
    out = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)
    out.print(Text("grün 漢 🙂\tred", style="red"))
    assert isinstance(out.file, io.StringIO)
    assert re.fullmatch(r"\x1b\[31mgrün 漢 🙂 +\x1b\[0m\x1b\[31mred\x1b\[0m\n", out.file.getvalue())
