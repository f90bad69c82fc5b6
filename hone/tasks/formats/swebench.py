"""Rows of SWE-bench and of data sets with its columns: SWE-Gym, SWE-smith, SWE-rebench.

Edition 4 has a repository and a commit; the harness knows image and test command, and so does
`hone.tasks.specifications`. Edition 5 has the columns `image`, `eval_script`, `log_parser` and `eval_type`.
"""

from __future__ import annotations

import re

from hone.tasks.diffs import reverse
from hone.tasks.errors import TaskError
from hone.tasks.formats.printed import printed_names
from hone.tasks.rows import Row, text, texts
from hone.tasks.specifications import (
    Specification,
    evaluation_script,
    find_specification,
    image_name,
    is_other_language,
    parser_of,
)
from hone.types import Checks, Environment, Task

_SWE_GYM = frozenset((
    "bokeh/bokeh", "conan-io/conan", "dask/dask", "facebookresearch/hydra", "getmoto/moto", "iterative/dvc",
    "modin-project/modin", "pandas-dev/pandas", "Project-MONAI/MONAI", "pydantic/pydantic", "python/mypy",
))  # fmt: skip
_MIRROR = re.compile(r"swesmith/(?P<owner>.+?)__(?P<name>.+)\.(?P<commit>[0-9a-f]{8})")
_TIMEOUT_S = 1800.0  # the harness's default


def to_task(row: Row, source: str) -> Task:
    """Return the task of a row of the data set `source`. Raises TaskError.

    Names that are no tests are left out; `metadata["printed_names"]` has them.
    """
    fail_to_pass = texts(row, "FAIL_TO_PASS")
    if not fail_to_pass:
        raise TaskError("`FAIL_TO_PASS` names no test")
    repo = text(row, "repo")
    specification = find_specification(row, source)
    script = text(row, "eval_script", "")
    if is_other_language(repo) and not (script and text(row, "log_parser", "")):
        raise TaskError(
            f"{repo} is not a Python repository, so its row needs `eval_script` and `log_parser` (edition 5)"
        )
    if not script and specification is not None and specification.test_command:
        script = evaluation_script(specification, row)
    pass_to_pass = texts(row, "PASS_TO_PASS")
    printed = printed_names((*fail_to_pass, *pass_to_pass), script)
    if set(printed) >= set(fail_to_pass):
        raise TaskError("`FAIL_TO_PASS` names no test of the files that its command runs")
    return Task(
        id=text(row, "instance_id"),
        problem=text(row, "problem_statement"),
        environment=Environment(
            image=f"docker://{image_of(row, source)}",
            repo=repo,
            # SWE-smith's is of a branch, which its images need not have
            commit="" if source == "swe-smith" else text(row, "base_commit", ""),
        ),
        checks=Checks(
            fail_to_pass=tuple(test for test in fail_to_pass if test not in printed),
            pass_to_pass=tuple(test for test in pass_to_pass if test not in printed),
            test_files={},
            gold_patch=_patch(text(row, "patch", ""), source),
            test_patch=text(row, "test_patch", ""),
            script=script,
            rule=text(row, "eval_type", "pass_and_fail"),
            parser=text(row, "log_parser", "") or _parser(specification, repo),
            timeout_s=_TIMEOUT_S,
        ),
        source=source,
        metadata={"printed_names": list(printed)} if printed else {},
    )


def to_row(task: Task) -> Row:
    """Return a row of edition 5. Raises TaskError for a task without a repository."""
    environment, checks = task.environment, task.checks
    if not environment.repo:
        raise TaskError(f"task {task.id} names no repository, which a row of SWE-bench must")
    return {
        "instance_id": task.id,
        "repo": environment.repo,
        **({} if task.source == "swe-smith" else {"base_commit": environment.commit}),
        "patch": _patch(checks.gold_patch, task.source),
        "test_patch": checks.test_patch,
        "problem_statement": task.problem,
        "FAIL_TO_PASS": list(checks.fail_to_pass),
        "PASS_TO_PASS": list(checks.pass_to_pass),
        "image": environment.image.removeprefix("docker://"),
        "eval_script": checks.script,
        "log_parser": checks.parser,
        "eval_type": checks.rule,
    }


def image_of(row: Row, source: str) -> str:
    """Return the image of a row, by default by its data set's naming rule. Raises TaskError."""
    for column in ("image", "docker_image", "image_name"):
        if named := text(row, column, ""):
            # SWE-smith's rows omit the account and write the repository like its folders
            return named if "/" in named else f"swebench/{named.replace('__', '_1776_')}"
    of_mirror = source == "swe-smith"
    name = text(row, "repo").removeprefix("swesmith/") if of_mirror else text(row, "instance_id")
    named = image_name(source, name)
    if named is None or (of_mirror and not _MIRROR.fullmatch(text(row, "repo"))):
        raise TaskError(f"the row names no image, and {source} has no rule for one")
    return named


def data_set(row: Row) -> str:
    """Return the data set of a row with these columns, by a unique column or the repository."""
    repo = row.get("repo")
    if isinstance(repo, str) and _MIRROR.fullmatch(repo):
        return "swe-smith"
    if row.get("install_config") is not None:
        return "swe-rebench"
    return "swe-gym" if isinstance(repo, str) and repo in _SWE_GYM else "swe-bench"


def seeded_bug(task: Task) -> str:
    """Return the patch that brings a bug into the image's repository: SWE-smith's images do not have it."""
    in_image = task.environment.image.startswith(("docker://", "rootfs:"))
    return reverse(task.checks.gold_patch) if task.source == "swe-smith" and in_image else ""


def origin(environment: Environment) -> tuple[str, str] | None:
    """Return repository and commit of an environment, equal for equal commits in every data set; or None.

    A commit is cut to eight digits, as in the names of SWE-smith's mirrors.
    """
    repo, commit = environment.repo, environment.commit
    if mirror := _MIRROR.fullmatch(repo):
        repo, commit = f"{mirror['owner']}/{mirror['name']}", mirror["commit"]
    if not repo and environment.image.startswith("repo:"):
        repo = environment.image
    if not repo or not commit:
        return None
    parent = "^" if commit.endswith("^") else ""  # R2E-Gym names the commit of the fix
    return repo.lower(), commit.lower()[:8] + parent


def _patch(patch: str, source: str) -> str:
    """Return the fix of a row's patch, or the row's patch of a fix: SWE-smith's rows have the bug instead."""
    return reverse(patch) if source == "swe-smith" else patch


def _parser(specification: Specification | None, repo: str) -> str:
    if specification is not None and specification.parser:
        return specification.parser
    return parser_of(repo) or "parse_log_pytest"
