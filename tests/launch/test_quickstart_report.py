"""What the quickstart's report says of the demonstrations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hone.cli.training import print_quickstart
from hone.config import ConfigError, RunSettings
from hone.evaluate.settings import EvaluateSettings
from hone.launch.quickstart import quickstart, right_share
from hone.launch.reporter import make_reporter
from hone.rollout.demonstrations import Demonstration
from tests.grading.example import make_task

pytestmark = pytest.mark.model

FIXES = [
    {"command": "sed -i '2s/-/+/' a.py", "right": True},
    {"command": "sed -i '1s/-/+/' a.py", "right": False},
]
TASK = replace(make_task(), metadata={"fixes": FIXES})


def said(task_id: str, command: str) -> Demonstration:
    reply = {"role": "assistant", "content": f"```bash\n{command}\n```"}
    return Demonstration(task_id=task_id, rollout_id=f"{task_id}-0", messages=(reply,))


def test_quickstart_refuses_to_measure_at_several_temperatures(tmp_path: Path) -> None:
    evaluated = EvaluateSettings(temperatures=(0.0, 1.0))
    with pytest.raises(ConfigError, match="one temperature"):
        quickstart(RunSettings(run_dir=tmp_path / "run", evaluate=evaluated), make_reporter())
    assert not (tmp_path / "run").exists()


def test_right_share_counts_demonstrations_with_a_right_fix() -> None:
    examples = [said(TASK.id, FIXES[number]["command"]) for number in (0, 1, 1, 0, 1)]
    assert right_share(examples, [TASK]) == pytest.approx(0.4)


def test_demonstration_with_one_of_two_right_fixes_is_not_right() -> None:
    other = {"command": "sed -i '3s/-/+/' a.py", "right": True}
    task = replace(TASK, metadata={"fixes": [*FIXES, other, FIXES[1]]})
    both = f"{FIXES[0]['command']} && {other['command']}"
    examples = [said(task.id, both), said(task.id, str(FIXES[0]["command"]))]
    assert right_share(examples, [task]) == pytest.approx(0.5)


def test_right_share_is_none_without_listed_fixes() -> None:
    other = replace(TASK, id="other", metadata={})
    assert right_share([said(TASK.id, FIXES[0]["command"])], [TASK, other]) is None


@pytest.mark.parametrize(("right", "line"), [(0.394, "40, of which 39.4 % right"), (None, "40")])
def test_printed_share_equals_the_report(
    right: float | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = {"resolve_rate": 0.5, "low": 0.4, "high": 0.6, "n": 10}
    report: dict[str, Any] = {
        "before": rate,
        "after": rate,
        "temperature": 0.0,
        "unseen_families": {"before": rate, "after": rate},
        "demonstrations": {"recorded": 40, "right": right, "graded": rate},
        "steps_without_training": None,
        "tasks_with_equal_rewards": None,
        "checkpoint": "final",
        "seconds": 60.0,
        "peak_memory_gib": 1.0,
    }
    print_quickstart(report, Path("run"))
    printed = next(text for text in capsys.readouterr().out.splitlines() if text.startswith("demonstrations"))
    assert printed.removeprefix("demonstrations").strip() == line
