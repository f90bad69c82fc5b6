"""`hone tasks validate`: over a pool, killed and run again, and the check of its data card."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli import main
from hone.cli.options import resolve_provider
from hone.launch.admission import open_journal
from hone.tasks.formats import save
from hone.tasks.sources import load_all
from tests.chaos.servers import HONE
from tests.chaos.stack import stack
from tests.e2e.small_run import REPOSITORY
from tests.rollout.real import tasks
from tests.services.process import require
from tests.waiting import wait_until

Hone = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hone:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hone", "tasks", "validate", *map(str, arguments)])
        code = main()
        out, err = capfd.readouterr()
        return code, out, err

    return run


def killed(method: str, call: int, *arguments: str | Path) -> str:
    """Run the command until it kills itself; return its stderr."""
    command = [sys.executable, "-m", "tests.cli.killed_validate", method, str(call), *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stderr


@pytest.mark.sandbox
def test_admitted_file_matches_its_card_until_it_changes(hone: Hone, tmp_path: Path) -> None:
    (good,) = tasks(1)
    bad = dataclasses.replace(good, id="bad", checks=dataclasses.replace(good.checks, gold_patch="no patch"))
    save([good, bad], tmp_path / "tasks.jsonl")
    out, card = tmp_path / "admitted.jsonl", tmp_path / "admitted.card.json"
    code, said, err = hone(tmp_path / "tasks.jsonl", "-o", out, "--repeat", "1")
    assert code == 1
    assert said.splitlines()[0].startswith("bad: unsolvable: ")
    assert "1 of 2 tasks admitted: gold 1 of 1, empty 0 of 1." in said
    assert "1 of 2 admitted, " in err
    assert " left" in err
    assert not (tmp_path / "admitted.jsonl.partial").exists()
    assert (tmp_path / "admitted.card.html").exists()
    assert json.loads(card.read_bytes())["counts"]["refused"] == {"unsolvable": 1}
    assert hone("--check", card, out) == (0, f"{out} is what {card} describes: 1 of 2 tasks admitted.\n", "")
    (task,) = load_all(out)
    save([dataclasses.replace(task, problem="Another one.")], out)
    code, said, _ = hone("--check", card, out)
    assert code == 1
    assert said.splitlines() == [
        f"task {good.id} has another problem, environment or checks",
        f"{out} is not what {card} describes.",
    ]


def test_pool_that_is_gone_is_named_and_nothing_is_decided(hone: Hone, tmp_path: Path) -> None:
    save(tasks(1), tmp_path / "tasks.jsonl")
    out = tmp_path / "admitted.jsonl"
    code, said, err = hone(tmp_path / "tasks.jsonl", "--pool", "http://127.0.0.1:9", "-o", out)
    assert (code, said) == (1, "")
    assert "127.0.0.1:9" in err.splitlines()[-1]
    assert not (tmp_path / "admitted.jsonl.partial").exists()
    assert not out.exists()


def test_journal_of_other_settings_is_refused_by_their_name(hone: Hone, tmp_path: Path) -> None:
    first, second = tasks(2)
    save([first], tmp_path / "tasks.jsonl")
    arguments = (tmp_path / "tasks.jsonl", "--pool", "http://127.0.0.1:9", "-o", tmp_path / "out.jsonl")
    settings = resolve_provider("pool", ["sandbox.provider=pool", "sandbox.pool_url=http://127.0.0.1:9"])
    open_journal(tmp_path / "out.jsonl", [first], settings, 2).put(first.id, {})
    _, _, err = hone(*arguments, "--repeat", "3", "--set", "sandbox.pids=77")
    assert "(repeats: 3 here, 2 in out.jsonl.partial; settings.sandbox.pids: 77 here, 512 in out.j" in err
    save([first, second], tmp_path / "tasks.jsonl")
    _, _, err = hone(*arguments, "--repeat", "2")
    assert f"(tasks.{second.id}: " in err
    elsewhere = (*arguments[:2], "http://127.0.0.1:10", *arguments[3:], "--set", "grading.concurrency=9")
    _, _, err = hone(*elsewhere, "--repeat", "2")
    assert "(tasks." in err
    assert "pool_url" not in err
    assert "concurrency" not in err


@pytest.mark.sandbox
@pytest.mark.full
def test_killed_validation_over_a_pool_continues(hone: Hone, tmp_path: Path) -> None:
    require()
    save(tasks(8), tmp_path / "tasks.jsonl")
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with stack(nodes=2, max_sandboxes=1, ttl_s=30.0, queue_s=120.0) as made:
        token_file = f"sandbox.pool_token_file={made.settings.pool_token_file}"
        arguments = [tmp_path / "tasks.jsonl", "-o", out, "--pool", made.pool.url, "--set", token_file]
        arguments += ["--repeat", "1", "--set", "grading.concurrency=2"]
        killed("put", 4, *arguments)
        assert len(journal.read_bytes().splitlines()) == 1 + 3
        err = killed("remove", 1, *arguments)
        assert "3 of 8 tasks are decided in the journal." in err
        keys = [json.loads(line)[0] for line in journal.read_bytes().splitlines()[1:]]
        assert sorted(keys) == sorted(task.id for task in tasks(8))
        code, said, _ = hone(*arguments)
        assert code == 0
        assert "8 of 8 tasks admitted" in said
    assert [task.id for task in load_all(out)] == [task.id for task in tasks(8)]
    assert hone("--check", tmp_path / "out.card.json", out)[0] == 0


@pytest.mark.sandbox
@pytest.mark.full
def test_pool_that_is_killed_stops_the_validation_and_keeps_the_journal(hone: Hone, tmp_path: Path) -> None:
    require()
    save(tasks(6), tmp_path / "tasks.jsonl")
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    with stack(nodes=1, max_sandboxes=1, ttl_s=30.0, queue_s=3.0) as made:
        sets = (f"sandbox.pool_token_file={made.settings.pool_token_file}", "sandbox.queue_timeout_s=3")
        arguments = [str(each) for each in (tmp_path / "tasks.jsonl", "-o", out, "--pool", made.pool.url)]
        for each in ("grading.concurrency=1", *sets):
            arguments += ["--set", each]
        command = [HONE, "tasks", "validate", *arguments, "--repeat", "1"]
        running = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: journal.exists() and len(journal.read_bytes().splitlines()) >= 2)
        made.pool.kill()
        _, err = running.communicate(timeout=250)
        assert running.returncode == 1
        assert "no sandbox can be started (pool: " in err
        assert f"of 6 tasks are decided and kept in {journal}: run the same command again" in err
        made.pool.start()
        code, said, _ = hone(*arguments, "--repeat", "1")
        assert code == 0
        assert "6 of 6 tasks admitted" in said
