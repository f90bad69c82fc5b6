import asyncio
import json
import shutil
import subprocess
from dataclasses import replace

import pytest

from hone.curate.journal import Journal
from hone.curate.record import Reason, Report, with_proof
from hone.curate.validate import ATTEMPTS, Admission, validate
from hone.grading.errors import GraderError
from hone.grading.grade import Grader
from hone.grading.settings import GradingSettings
from hone.sandbox import ProviderUnavailable, make_provider
from hone.sandbox.contract import Check, Health
from hone.sandbox.settings import SandboxSettings
from hone.tasks.curriculum import generate
from hone.tasks.formats import content_hash
from hone.tasks.settings import TasksSettings
from hone.tasks.workspace import prepare
from hone.types import Environment, TestStatus, Verdict

GOOD, OTHER = generate(TasksSettings(train=2, test=0, unseen=0)).train
SETTINGS = GradingSettings(concurrency=2)


def verdict(*statuses: str) -> Verdict:
    tests = {f"t.py::t{i}": TestStatus(status) for i, status in enumerate(statuses)}
    passes = set(statuses) == {"passed"}
    return Verdict(resolved=passes, tests=tests, score=1.0 if passes else 0.0)


PASS, FAIL, WORSE = verdict("passed", "passed"), verdict("passed", "failed"), verdict("error", "failed")


@pytest.mark.parametrize(
    ("gold", "empty", "said"),
    [
        ([PASS, PASS], [FAIL, FAIL], None),
        ([FAIL, FAIL], [FAIL, FAIL], "unsolvable: the gold patch never passes t.py::t1"),
        ([PASS, PASS], [PASS, PASS], "already solved"),
        ([PASS, FAIL], [FAIL, FAIL], "gold patch passes 1 of 2 times; t.py::t1 changes from run to run"),
        ([PASS, PASS], [FAIL, PASS], "flaky: its tests pass without a patch 1 of 2 times"),
        ([PASS, PASS], [FAIL, WORSE], "flaky: t.py::t0 changes from run to run"),
    ],
)
def test_admission_needs_gold_to_pass_and_empty_to_fail(gold, empty, said):
    refusal = Admission(task_id="t", gold=tuple(gold), empty=tuple(empty)).refusal
    assert refusal == said if said is None else said in refusal


def test_admitted_task_excuses_what_the_gold_patch_leaves_skipped():
    gold = verdict("passed", "skipped", "xfailed")
    admitted = Admission(
        task_id=GOOD.id, gold=(replace(gold, resolved=True),), empty=(replace(gold, tests={}),)
    )
    journal = Journal(None, {})
    journal.put(GOOD.id, admitted.record(GOOD, elapsed_s=1.0).to_json())
    (task,) = with_proof([GOOD, OTHER], Report(journal=journal, ids=(GOOD.id, OTHER.id)))
    assert task.checks.excused == ("t.py::t1", "t.py::t2")


def test_task_whose_empty_patch_was_stopped_keeps_the_limit():
    for seconds, limit_s in ((30.0, 30.0), (29.0, GOOD.checks.timeout_s)):
        empty = replace(FAIL, seconds=seconds)
        admitted = Admission(task_id=GOOD.id, gold=(PASS,), empty=(empty,), limit_s=30.0)
        journal = Journal(None, {})
        record = admitted.record(GOOD, elapsed_s=1.0)
        journal.put(GOOD.id, record.to_json())
        (task,) = with_proof([GOOD], Report(journal=journal, ids=(GOOD.id,)))
        assert record.content == content_hash(task)
        assert task.checks.timeout_s == limit_s
        assert task.metadata["validation"]["limit_s"] == 30.0


class Slow(Grader):
    """Verdicts without sandboxes: the gold patch takes a time, the empty patch takes all that it may."""

    def __init__(self, seconds, tmp_path):
        super().__init__(Unavailable(healthy=True), SETTINGS, cache=tmp_path)
        self.seconds, self.limits = seconds, []

    async def grade_trusted(self, task, patch, variation):
        if patch:
            return replace(PASS, seconds=self.seconds)
        self.limits.append(task.checks.timeout_s)
        return replace(FAIL, seconds=task.checks.timeout_s)


@pytest.mark.parametrize(("seconds", "limit_s"), [(0.2, 30.0), (100.0, 600.0), (1000.0, 1800.0)])
def test_limit_of_the_empty_patch_follows_the_gold_patch(seconds, limit_s, tmp_path):
    task = replace(GOOD, checks=replace(GOOD.checks, timeout_s=1800.0))
    grader = Slow(seconds, tmp_path)
    report = asyncio.run(validate([task], grader, Journal(None, {}), repeats=3, controls=False))
    assert grader.limits == [limit_s] * 3
    (record,) = report.records()
    assert record.proof["limit_s"] == limit_s


@pytest.mark.sandbox
def test_refused_tasks_are_named_with_their_reason(tmp_path):
    tasks = [
        GOOD,
        replace(OTHER, id="unsolvable", checks=replace(OTHER.checks, gold_patch="not a patch")),
        replace(OTHER, id="solved", checks=replace(OTHER.checks, fail_to_pass=OTHER.checks.pass_to_pass[:1])),
        replace(OTHER, id="homeless", environment=Environment(image="host")),
    ]
    done = []

    async def main():
        async with make_provider(SandboxSettings(state_dir=tmp_path / "state")) as provider:
            return await validate(
                tasks,
                Grader(provider, SETTINGS, cache=tmp_path / "workspaces"),
                Journal(None, {}),
                repeats=2,
                progress=lambda record: done.append(record.task_id),
            )

    report = asyncio.run(main())
    assert report.admitted == (GOOD.id,)
    assert list(report.refused) == ["unsolvable", "solved", "homeless"]
    assert report.refused["unsolvable"].startswith("unsolvable: the gold patch never passes ")
    assert report.refused["solved"].startswith("already solved")
    assert "its repository is empty" in report.refused["homeless"]
    assert sorted(done) == sorted(task.id for task in tasks)
    assert [len(record.gold) for record in report.records()] == [2, 2, 2, 0]
    assert [record.reason for record in report.records()] == [
        None,
        Reason.UNSOLVABLE,
        Reason.ALREADY_SOLVED,
        Reason.NO_VERDICT,
    ]
    (proven,) = with_proof(tasks, report)
    assert proven.metadata["validation"]["varied"] == ["hash_seed", "timezone", "locale"]


def _remove(repository, name):
    """Commit a tree without the file: no git command brings it back."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-C", str(repository)]
    subprocess.run([*git, "rm", "--quiet", name], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=gone"], check=True)


class TwoWorlds:
    """Real sandboxes; every second one starts from another repository, as a flaky machine would."""

    def __init__(self, provider, other_layer):
        self.provider, self.other_layer, self.starts = provider, other_layer, 0

    async def start(self, spec):
        self.starts += 1
        return await self.provider.start(replace(spec, layer=self.other_layer) if self.starts % 2 else spec)


@pytest.mark.full
@pytest.mark.sandbox
def test_flaky_task_is_refused(tmp_path):
    async def main():
        async with make_provider(SandboxSettings(state_dir=tmp_path / "state")) as provider:
            grader = Grader(provider, SETTINGS, cache=tmp_path / "w")
            first = await validate([GOOD], grader, Journal(None, {}), repeats=1)
            assert first.admitted == (GOOD.id,)
            (made,) = (path for path in (tmp_path / "w").iterdir() if path.is_dir())
            other = shutil.copytree(made, tmp_path / "other", symlinks=True)
            _remove(other, f"{GOOD.metadata['names'][0]}.py")
            grader = Grader(TwoWorlds(provider, other), SETTINGS, cache=tmp_path / "w")
            return await validate([GOOD], grader, Journal(None, {}), repeats=2)

    assert asyncio.run(main()).refused[GOOD.id].startswith("flaky: the gold patch passes 1 of 2 times")


class Unavailable:
    """A provider that starts no sandbox."""

    def __init__(self, *, healthy, retryable=False):
        self.healthy, self.retryable, self.starts = healthy, retryable, 0

    async def start(self, spec):
        self.starts += 1
        raise ProviderUnavailable("the machine is full", retryable=self.retryable)

    async def health(self):
        return Health(checks=(Check(name="pool", ok=self.healthy, detail="cannot connect"),))


def test_grader_failure_is_not_a_failing_test(tmp_path):
    provider = Unavailable(healthy=True)
    grader = Grader(provider, SETTINGS, cache=tmp_path)
    report = asyncio.run(validate([GOOD, OTHER], grader, Journal(None, {}), repeats=1))
    assert report.admitted == ()
    for reason in report.refused.values():
        assert reason.startswith("no verdict: ")
        assert "the machine is full" in reason
    assert provider.starts == 2


def test_retryable_failure_is_tried_again(tmp_path):
    provider = Unavailable(healthy=True, retryable=True)
    grader = Grader(provider, SETTINGS, cache=tmp_path)
    report = asyncio.run(validate([GOOD], grader, Journal(None, {}), repeats=1))
    assert list(report.refused) == [GOOD.id]
    assert provider.starts == ATTEMPTS


def test_provider_that_is_gone_stops_the_validation(tmp_path):
    journal = Journal(tmp_path / "journal", {})
    grader = Grader(Unavailable(healthy=False), SETTINGS, cache=tmp_path)
    with pytest.raises(GraderError, match=r"no sandbox can be started \(pool: cannot connect\)"):
        asyncio.run(validate([GOOD, OTHER], grader, journal, repeats=1))
    assert len(Journal(tmp_path / "journal", {})) == 0


class FakeGrader:
    """Grades at once: the gold patch passes, and the empty patch fails."""

    def __init__(self):
        self.settings, self.provider = GradingSettings(concurrency=4), Unavailable(healthy=True)
        self.graded = []  # ids, one for each grading

    async def grade_trusted(self, task, patch, variation):
        self.graded.append(task.id)
        await asyncio.sleep(0)
        if task.id == "crashes":
            raise KeyError("no such thing")
        return PASS if patch else FAIL


def numbered(count):
    return [replace(GOOD, id=f"t{number}") for number in range(count)]


def test_crash_of_the_grader_refuses_its_task_only():
    tasks = [replace(GOOD, id="crashes"), *numbered(3)]
    report = asyncio.run(validate(tasks, FakeGrader(), Journal(None, {}), repeats=1, controls=False))
    assert report.admitted == ("t0", "t1", "t2")
    assert report.refused["crashes"].startswith("no verdict: the grader crashed: KeyError: 'no such thing'")


def test_few_of_many_tasks_are_in_memory(tmp_path):
    grader, most, taken = FakeGrader(), 0, 0

    def tasks():
        nonlocal most, taken
        for task in numbered(300):
            taken += 1
            most = max(most, len(asyncio.all_tasks()))
            yield task
            assert taken - len(journal) <= grader.settings.concurrency + 1

    journal = Journal(tmp_path / "journal", {})
    report = asyncio.run(validate(tasks(), grader, journal, repeats=1, controls=False))
    assert len(report.admitted) == 300
    assert most <= grader.settings.concurrency + 1


def test_interrupted_validation_continues_without_repeating_tasks(tmp_path):
    path, tasks = tmp_path / "journal", numbered(20)
    first = FakeGrader()
    asyncio.run(validate(tasks, first, Journal(path, {}), repeats=1, controls=False))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:9]) + lines[9][:30])  # killed while it wrote the ninth record
    decided = {json.loads(line)[0] for line in lines[1:9]}
    second = FakeGrader()
    report = asyncio.run(validate(tasks, second, Journal(path, {}), repeats=1, controls=False))
    assert set(second.graded) == {task.id for task in tasks} - decided
    assert report.admitted == tuple(task.id for task in tasks)
    keys = [json.loads(line)[0] for line in path.read_bytes().splitlines()[1:]]
    assert sorted(keys) == sorted(task.id for task in tasks)


class Busy:
    """Counts the sandboxes that are being started, and starts none."""

    def __init__(self):
        self.now = self.most = 0
        self.full = asyncio.Event()

    async def start(self, spec):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == SETTINGS.concurrency:
            self.full.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.now -= 1


def test_gradings_are_bounded_and_end_on_cancellation(tmp_path):
    async def main():
        provider = Busy()
        tasks = [replace(GOOD, id=f"t{i}") for i in range(6)]
        grader = Grader(provider, SETTINGS, cache=tmp_path)
        running = asyncio.create_task(validate(tasks, grader, Journal(None, {}), repeats=1))
        async with asyncio.timeout(60):
            await provider.full.wait()
            for _ in range(50):  # longer than every other task needs to come to its first grading
                await asyncio.to_thread(prepare, GOOD, tmp_path)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert (provider.now, provider.most) == (0, SETTINGS.concurrency)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
