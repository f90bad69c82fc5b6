"""Ctrl-C ends a command cleanly, and soon, whatever it is doing."""

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

pytestmark = pytest.mark.slow

POLITE = """
async def job():
    print('ready', flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print('tidied', flush=True)
"""
STUBBORN = """
async def job():
    while True:
        try:
            print('ready', flush=True)
            time.sleep(600)
        except BaseException:
            continue
"""
PROGRAM = """
import asyncio, sys, time
from hone.cli import interrupts
from hone.cli.app import main
from hone.cli import app
{job}
interrupts.GRACE_S = {grace_s}
sys.argv = ["hone", "train", "my recipe.toml"]

def command() -> None:
    from hone.cli.options import run_with_progress
    run_with_progress(lambda reporter: asyncio.run(job()))

app.app = lambda **_: command()
sys.exit(main())
"""


def interrupted(
    job: str, signals: Sequence[signal.Signals], started_with: str = "", grace_s: float = 50.0
) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", started_with + PROGRAM.format(job=job, grace_s=grace_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_command_cleans_up_and_prints_how_to_continue(number: signal.Signals):
    code, out, err = interrupted(POLITE, [number])
    assert (code, out) == (130, "tidied\n")
    assert "To continue, run the same command again: hone train 'my recipe.toml'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_background_command_stops_cleanly(number: signal.Signals):
    ignored = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code, out, err = interrupted(POLITE, [number], started_with=ignored)
    assert (code, out) == (130, "tidied\n"), err


def test_hanging_command_is_killed_after_the_grace_period():
    code, _, err = interrupted(STUBBORN, [signal.SIGINT], grace_s=0.3)
    assert code == 130
    assert "Stopped before the cleanup finished" in err
    assert "hone train 'my recipe.toml'" in err
