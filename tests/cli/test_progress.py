"""What a long job shows, on a terminal and in a log."""

import io
import re

from rich.console import Console

from hone.launch.reporter import Reporter, TerminalReporter


def run_stages(reporter: Reporter) -> None:
    with reporter, reporter.stage("training", 3) as outer:
        for _ in range(3):
            with reporter.stage("collecting") as inner:
                inner.advance(4)
            outer.set_status("reward 0.5")
            outer.advance()
        outer.set_done(3, 4)
    reporter.note("done [not markup]")


def test_a_log_gets_lines_without_control_characters():
    log = io.StringIO()
    run_stages(Reporter(Console(file=log, width=80)))
    lines = log.getvalue().splitlines()
    assert "\x1b" not in log.getvalue()
    assert lines[0] == "training ..."
    assert re.fullmatch(r"training  3/4  \d+ s  reward 0\.5", lines[-2])
    assert lines[-1] == "done [not markup]"


def test_terminal_shows_bars_and_keeps_a_line_per_stage():
    log = io.StringIO()
    run_stages(TerminalReporter(Console(file=log, width=120, force_terminal=True, color_system=None)))
    assert re.search(r"training  3/4  \d+ s  reward 0\.5", log.getvalue())
    assert len(re.findall(r"collecting  4  \d+ s", log.getvalue())) == 3
