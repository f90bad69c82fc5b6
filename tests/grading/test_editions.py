"""Both editions of the rules equal the real packages, on published logs and on logs derived from them."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hone.grading.errors import LogRefused
from hone.grading.rules import END, START, Edition, Report, Resolution, count, find_parser, read_log

pytestmark = pytest.mark.full

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "swebench_logs"
DERIVED = 600
WORDS = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")
LINES = (
    "SKIPPED [1] a/b.py:3: no", "SKIPPED [12] x", "PASSED", "ERROR", "FAILED a b - c", "PASSED [100%]",
    ">>>>> Tests Timed Out", ">>>>> Test Exit Code: 1", "\x1b[31mFAILED\x1b[0m t.py::x", "t.py::y PASSED",
    "FAILED", "ok", "test_a (m.T) ... ok", "test_a (m.T) ... FAIL", "test_a F", "a.py:b_c PASSED [ 3%]",
)  # fmt: skip
Case = dict[str, Any]


@pytest.fixture(scope="module")
def package_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed swebench 4.1.0, without its requirements: those of edition 5 serve it."""
    folder = tmp_path_factory.mktemp("swebench")
    install = ["uv", "pip", "install", "-q", "--no-deps", "--target", str(folder), "swebench==4.1.0"]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"swebench 4.1.0 cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder


def published() -> list[Case]:
    if not PUBLISHED.is_dir():
        pytest.skip("the published logs are not here")
    cases = [json.loads(line) for line in (PUBLISHED / "cases.jsonl").read_text().splitlines()]
    columns = ("repo", "version", "instance_id", "FAIL_TO_PASS", "PASS_TO_PASS")
    return [
        {
            "spec": {**{name: case[name] for name in columns}, "log_parser": case["parser"]},
            "log": gzip.decompress((PUBLISHED / case["log"]).read_bytes()).decode("utf-8", "replace"),
        }
        for case in cases
    ]


def derive(case: Case, cases: list[Case], rng: random.Random) -> Case:
    """Return the case with one to four faults in its log: lines lost, moved, repeated, foreign, changed."""
    spec, lines = dict(case["spec"]), case["log"].split("\n")
    for _ in range(rng.randint(1, 4)):
        fault, at = rng.randrange(8), rng.randrange(len(lines) + 1)
        markers = [number for number, line in enumerate(lines) if START in line or END in line]
        if fault == 0:
            del lines[at:]
        elif fault == 1 and markers:
            lines.insert(min(at, len(lines) - 1), lines.pop(rng.choice(markers)))
        elif fault == 2 and markers:
            lines.insert(at, lines[rng.choice(markers)])
        elif fault == 3:
            for number in rng.sample(range(len(lines)), min(len(lines), 40)):
                lines[number] = lines[number].replace(rng.choice(WORDS), rng.choice(WORDS))
        elif fault == 4:
            lines.insert(at, rng.choice(LINES))
        elif fault == 5:
            other = rng.choice(cases)["log"].split("\n")
            start = rng.randrange(len(other))
            lines[at:at] = other[start : start + rng.randint(1, 50)]
        elif fault == 6:
            del lines[at : at + rng.randint(1, 80)]
        elif fault == 7:
            tests = [*spec["FAIL_TO_PASS"], *spec["PASS_TO_PASS"]]
            lines.insert(at, f"{rng.choice(WORDS)} {rng.choice(tests)}")
    if rng.random() < 0.3:  # ids that only an odd reading of the log has
        odd = sorted({word for line in lines for word in line.split()[1:2]})
        spec["FAIL_TO_PASS"] = [*spec["FAIL_TO_PASS"], *rng.sample(odd, min(3, len(odd)))]
    return {"spec": spec, "log": "\n".join(lines)}


def run_harness(cases: list[Case], path: str) -> list[dict[str, Any]]:
    """Return the reports of the `swebench` package on `path`, or of the installed one."""
    driver = Path(__file__).with_name("harness.py")
    done = subprocess.run(
        [sys.executable, str(driver)],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def grade(case: Case, edition: Edition, *, strict: bool) -> dict[str, Any]:
    spec, text = case["spec"], io.StringIO(case["log"], newline=None).read()
    about = {name: spec[name] for name in ("repo", "version", "instance_id")}
    try:
        parser = find_parser(spec["log_parser"], edition)
        statuses = read_log(text, parser, edition=edition, strict=strict, **about)
    except LogRefused:
        return {"applied": False, "resolved": False, "tests": None}
    found = count(statuses, spec["FAIL_TO_PASS"], spec["PASS_TO_PASS"], edition=edition)
    resolved = found.resolution is Resolution.FULL
    return {"applied": True, "resolved": resolved, "tests": _lists(found)}


def _lists(report: Report) -> dict[str, dict[str, list[str]]]:
    both = {"FAIL_TO_PASS": report.fail_to_pass, "PASS_TO_PASS": report.pass_to_pass}
    empty: dict[str, list[str]] = {"success": [], "failure": []}
    named = {
        name: {"success": list(each.success), "failure": list(each.failure)} for name, each in both.items()
    }
    return {**named, "FAIL_TO_FAIL": empty, "PASS_TO_FAIL": empty}


@pytest.mark.parametrize("edition", list(Edition))
def test_edition_equals_its_package(edition: Edition, package_4: Path) -> None:
    cases, rng = published(), random.Random(edition.value)
    originals = len(cases)
    cases += [derive(rng.choice(cases[:originals]), cases[:originals], rng) for _ in range(DERIVED)]
    theirs = run_harness(cases, str(package_4) if edition is Edition.V4 else "")
    assert len(theirs) == len(cases)
    assert sum(each.get("resolved", False) for each in theirs) > 50
    for number, (case, told) in enumerate(zip(cases, theirs, strict=True)):
        name = f"log {number}, of {case['spec']['instance_id']}"
        strictly = grade(case, edition, strict=True)
        if "crash" in told:
            assert not strictly["resolved"], name
            continue
        assert grade(case, edition, strict=False) == told, name
        # what a patch may have printed counts against it, and only that: never in its favour
        assert told["resolved"] or not strictly["resolved"], name
        assert number >= originals or strictly == told, name
