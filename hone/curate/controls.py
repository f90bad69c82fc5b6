"""Find controls: edits of trusted tests after which they fail with the reference fix.

propose    several edits of each test function: `hone.tasks.controls`
try        one run of the tests for each: an edit is a control of the tests that fail with it
confirm    further runs as a grading makes them: each control fails every time, and each test passes
           while any other test is replaced by its control
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, count

from hone.grading.controls import FAILED, edit_files
from hone.grading.grade import Grader
from hone.grading.plan import compile_plan
from hone.grading.run import Edition, TestRun
from hone.grading.titles import official_names
from hone.tasks.controls import CONTROLS, Edit, Kind, TestFunction, best, propose, propose_values
from hone.types import Control, Task, TestStatus

COMMON_FILES = 6  # helper modules and data files of the tests that are edited


async def find_controls(task: Task, grader: Grader, *, repeats: int) -> tuple[Control, ...]:
    """Return the controls of a task whose reference fix passes its tests in every run.

    Args:
        repeats: times that each control must fail.
    Raises:
        GraderError: the sandbox or the runner did not start.
    """
    plan = compile_plan(task)
    if plan.by_log:  # its tests do not run in the trusted runner
        return ()
    functions: list[TestFunction] = []
    values: list[Control] = []  # without tests
    modules: list[str] = []

    def all_edits(texts: Mapping[str, str]) -> list[Edition]:
        functions[:] = propose(texts, named)
        modules[:] = sorted({function.file for function in functions})
        values[:] = _value_edits(texts, modules)
        most = max((len(function.edits) for function in functions), default=0)
        shared = _each_alone(values, texts)
        return [
            Edition(),
            *(_edited(functions, texts, number) for number in range(most)),
            *(Edition(texts=each, files=tuple(modules)) for each in shared),
        ]

    named = await _named_tests(task, grader)
    plain, *runs = await grader.run_edited(task, task.checks.gold_patch, all_edits)
    tried, shared = runs[: len(runs) - len(values)], runs[len(runs) - len(values) :]
    pairs = zip(values, shared, strict=True)
    common = [each for value, run in pairs if (each := _failing_together(value, plain, run, modules, named))]
    if common:
        common = await _confirm_common(task, grader, common, modules, repeats)
    covered = frozenset(test for control in common for test in control.tests)
    own = [each for function in functions if (each := _failing(function, plain, tried, covered))]
    return (*(await _confirm(task, grader, own, repeats) if own else ()), *common)


def _value_edits(texts: Mapping[str, str], modules: Sequence[str]) -> list[Control]:
    """Return edits, without tests, of the modules' own constants and of COMMON_FILES other files."""
    others = sorted(set(texts) - set(modules))[:COMMON_FILES]
    return [
        Control(file=file, start=edit.start, old=edit.old, new=edit.new, tests=())
        for file in [*modules, *others]
        for edit in propose_values(file, texts[file])
    ]


async def _named_tests(task: Task, grader: Grader) -> frozenset[str]:
    """Return the named tests, by their ids in reports of the runner."""
    plan, checks = compile_plan(task), task.checks
    if plan.job.reported is not None:
        return frozenset(plan.job.reported)
    (run,) = await grader.run_edited(task, checks.gold_patch, lambda _: [Edition()])
    if run.by_log:
        return frozenset()
    named = set(checks.named_tests)
    facts = {"suite": run.suite, "titles": run.titles, "repo": task.environment.repo}
    return frozenset(
        test for test in run.statuses if named & set(official_names({test: "PASSED"}, checks.parser, **facts))
    )


def _edited(functions: Sequence[TestFunction], texts: Mapping[str, str], number: int) -> Edition:
    """Return the files in which each function has its edit of that number, where it has so many."""
    edits = [each.control(each.edits[number], ()) for each in functions if number < len(each.edits)]
    edited = edit_files(edits, texts, {edit.file for edit in edits})
    return Edition(texts=edited, files=tuple(edited))


def _failing(
    function: TestFunction, plain: TestRun, tried: Sequence[TestRun], covered: frozenset[str]
) -> tuple[Control, ...]:
    """Return the controls of a function that most of its tests fail with; a lesser kind counts less.

    Args:
        covered: tests with a control by the value that they share with others, better than a lesser kind.
    """
    passing = [test for test in function.tests if plain.statuses.get(test) is TestStatus.PASSED]
    hits: dict[Edit, tuple[str, ...]] = {}
    for edit, run in zip(function.edits, tried, strict=False):
        if run.finished and run.tampered is None:
            hits[edit] = tuple(t for t in passing if run.statuses.get(t) in FAILED)
    chosen = max(hits, key=lambda edit: len(hits[edit]) * (len(Kind) - edit.kind), default=None)
    if chosen is None or not hits[chosen] or (chosen.kind > Kind.PARAMETER and covered >= set(hits[chosen])):
        return ()
    return tuple(
        function.control(edit, hits[edit])
        for edit in best([edit for edit in hits if hits[edit] == hits[chosen]])
    )


def _each_alone(edits: Sequence[Control], texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the edited files with each of the edits alone, and the others as they were."""
    files = {edit.file for edit in edits}
    return [edit_files([edit], texts, files) for edit in edits]


def _failing_together(
    value: Control, plain: TestRun, run: TestRun, modules: Collection[str], named: frozenset[str]
) -> Control | None:
    """Return the control of the named tests that fail with an edit; None where another result changes."""
    ran = [test for test in plain.statuses if "::" not in test or test.split("::")[0] in modules]
    changed = [test for test in ran if run.statuses.get(test) is not plain.statuses[test]]
    failing = [test for test in changed if run.statuses.get(test) in FAILED and test in named]
    fits = run.finished and run.tampered is None and len(failing) == len(changed) > 0
    return dataclasses.replace(value, tests=tuple(failing)) if fits else None


async def _confirm_common(
    task: Task, grader: Grader, found: Sequence[Control], modules: Sequence[str], repeats: int
) -> list[Control]:
    """Return the controls with which the same tests fail every time, and no other result changes."""

    def edit(texts: Mapping[str, str]) -> list[Edition]:
        once = [Edition(texts=each, files=tuple(modules)) for each in _each_alone(found, texts)]
        return [Edition(), *once * (repeats - 1)]

    plain, *runs = await grader.run_edited(task, task.checks.gold_patch, edit)
    kept = list(found)
    for each, run in zip([*found] * (repeats - 1), runs, strict=False):
        if each in kept and _failing_together(each, plain, run, modules, frozenset(each.tests)) != each:
            kept.remove(each)
    return kept if len(runs) == len(found) * (repeats - 1) else []


async def _confirm(
    task: Task, grader: Grader, found: Sequence[tuple[Control, ...]], repeats: int
) -> tuple[Control, ...]:
    """Return the controls that fail in every run, of files whose tests do not depend on each other.

    Each of these files runs alone, and any two functions of a file meet in a run in which one is itself and
    the other its control.

    Args:
        found: the controls of each function.
    """
    counters: dict[str, count[int]] = {}  # by file
    numbers = [next(counters.setdefault(controls[0].file, count())) for controls in found]
    bits = max(1, max(numbers).bit_length())
    files = sorted(counters)
    turns: list[dict[Control, int]] = []  # control -> the run of two in which its tests are themselves
    for turn in range(max(bits, CONTROLS * (repeats - 1))):
        chosen = [controls[turn % len(controls)] for controls in found]
        turns.append({each: number >> turn % bits & 1 for each, number in zip(chosen, numbers, strict=True)})

    def edit(texts: Mapping[str, str]) -> list[Edition]:
        pairs = [
            edit_files([each for each, itself in turn.items() if itself != run], texts, files)
            for turn in turns
            for run in range(2)
        ]
        alone = [{file: texts[file]} for file in files]
        return [Edition(), *(Edition(texts=each, files=tuple(each)) for each in [*alone, *pairs])]

    plain, *runs = await grader.run_edited(task, task.checks.gold_patch, edit)
    if not runs or not all(run.finished and run.tampered is None for run in runs):
        return ()
    every = list(chain.from_iterable(found))
    controlled = {test for each in every for test in each.tests}
    rest = [test for test in plain.statuses if test not in controlled]
    dependent: set[str] = set()  # files
    unfailing: set[Control] = set()
    for file, run in zip(files, runs, strict=False):
        tests = [test for each in every if each.file == file for test in each.tests]
        if _differ(tests, run, plain):
            dependent.add(file)
    for number, turn in enumerate(turns):
        pair = runs[len(files) + 2 * number :][:2]
        for file in files:
            tests = [test for test in rest if test.split("::")[0] == file]
            if any(_differ(tests, run, plain) for run in pair):
                dependent.add(file)
        for each, itself in turn.items():
            if _differ(each.tests, pair[itself], plain):
                dependent.add(each.file)
            if any(pair[1 - itself].statuses.get(test) not in FAILED for test in each.tests):
                unfailing.add(each)
    return tuple(each for each in every if each.file not in dependent and each not in unfailing)


def _differ(tests: Iterable[str], run: TestRun, other: TestRun) -> bool:
    return any(run.statuses.get(test) is not other.statuses.get(test) for test in tests)
