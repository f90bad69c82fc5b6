from datetime import UTC, datetime

import pytest

from hone.curate.mining.candidates import CommitRejected, Reason, select, split_commit, strip_tool_text, walk
from hone.curate.mining.candidates import test_modules as modules_of
from hone.curate.mining.settings import MiningSettings
from hone.tasks.errors import TaskError
from hone.tasks.repository import Repository, run_git
from tests.curate.mining.projects import BASE, FIXED, TESTS, Project

FIX = {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "me__shop")


def chosen(project: Project, **settings: int):
    repository = Repository.open(project.folder)
    return select(repository, walk(repository), MiningSettings.model_validate(settings))


def test_history_is_newest_first_with_changes(project):
    fix = project.commit("Fix the total\n\nIt was wrong.", FIX)
    project.commit("Ünïcode \\ in a name", {"shop/pré fixe.py": "x = 1\n"})
    newest, second = walk(Repository.open(project.folder))
    assert [change.path for change in newest.changes] == ["shop/pré fixe.py"]
    assert (second.id, second.message) == (fix, "Fix the total\n\nIt was wrong.")
    assert {change.path: change.lines for change in second.changes} == {
        "shop/prices.py": 2,
        "tests/test_prices.py": 4,
    }


def test_history_starts_at_a_day(project):
    project.commit("Old", {"a.py": "1\n"})
    newer = project.commit("New", {"a.py": "2\n"})
    day = datetime.fromtimestamp(1_600_000_000 + 86_400 * 3 - 60, UTC)
    assert [commit.id for commit in walk(Repository.open(project.folder), since=day)] == [newer]


def test_missing_branch_is_an_error(project):
    with pytest.raises(TaskError, match="has no commit nowhere"):
        walk(Repository.open(project.folder), "nowhere")


def test_merge_is_one_commit_with_the_merged_messages(project):
    project.git("checkout", "--quiet", "-b", "topic")
    project.commit("Fix the total", FIX)
    project.git("checkout", "--quiet", "main")
    project.git("merge", "--quiet", "--no-ff", "topic", "--message", "Merge branch 'topic'")
    (found,) = chosen(project).candidates
    assert found.parents == 2
    assert found.message == "Merge branch 'topic'\n\nFix the total"
    assert split_commit(Repository.open(project.folder), found).source == ("shop/prices.py",)


def test_bundle_works_like_a_folder(project, tmp_path):
    fix = project.commit("Fix the total", FIX)
    run_git("bundle", "create", str(tmp_path / "shop.bundle"), "--all", "HEAD", cwd=project.folder)
    repository = Repository.open(tmp_path / "shop.bundle")
    assert [each.id for each in walk(repository)] == [fix]


def test_newer_commits_come_first(project):
    for number, title in enumerate(["Fix one", "commit: two", "Three is wrong"]):
        files = {"shop/prices.py": f"x = {number}\n", "tests/test_prices.py": f"y = {number}\n"}
        project.commit(title, files)
    found = chosen(project).candidates
    assert [each.message for each in found] == ["Three is wrong", "commit: two", "Fix one"]


def test_text_added_by_tools_is_removed():
    message = (
        "Merge pull request #7 from me/branch\n\nFix totals (#7)\n\nThey were off by one.\n\nCloses #3.\n"
        "Co-authored-by: Me <a@b.c>\nSigned-off-by: Me <me@b.c>\n"
    )
    assert strip_tool_text(message) == "Fix totals\n\nThey were off by one."
    assert strip_tool_text("Fix total(3) of #12") == "Fix total(3) of #12"


@pytest.mark.parametrize(
    ("message", "files", "reason"),
    [
        ("Fix it", {"shop/prices.py": FIXED}, Reason.NO_TESTS),
        ("Fix it", {"tests/test_prices.py": TESTS, "CHANGES.md": "x"}, Reason.NO_SOURCE),
        ("Fix it", {**FIX, "shop/fast.c": "int x;\n"}, Reason.COMPILED),
        ("Fix it", {**FIX, "shop/prices.py": FIXED + "x = 1\n" * 400}, Reason.TOO_LARGE),
        ("Fix it", {**FIX, **{f"shop/m{n}.py": "x = 1\n" for n in range(6)}}, Reason.TOO_LARGE),
    ],
)
def test_unsuitable_commits_are_counted_by_reason(project, message, files, reason):
    project.commit(message, files)
    found = chosen(project)
    assert (found.candidates, dict(found.skipped)) == ((), {reason: 1})


def test_commit_is_split_into_source_and_tests(project):
    files = {
        **FIX,
        "shop/names.json": "{}\n",
        "tests/data/logo.bin": b"\x00\x01\xff",
        "CHANGES.md": "# Changes\n\n## 1.1\n\n- The total is right\n",
        "pyproject.toml": BASE["pyproject.toml"].replace("1.0", "1.1"),
    }
    project.commit("Fix the total", files)
    repository = Repository.open(project.folder)
    (found,) = chosen(project).candidates
    parts = split_commit(repository, found)
    assert parts.source == ("shop/names.json", "shop/prices.py")
    assert parts.tests == ("tests/data/logo.bin", "tests/test_prices.py")
    assert modules_of(parts) == ("tests/test_prices.py",)
    assert "CHANGES" not in parts.gold_patch + parts.test_patch
    assert "pyproject" not in parts.gold_patch + parts.test_patch
    assert {"total", "prices"} <= parts.known


def test_both_patches_make_the_tree_of_the_fix(project, tmp_path):
    project.commit(
        "Fix it", {**FIX, "tests/data/logo.bin": b"\x00\xff\r\n", "shop/crlf.py": "a = 1\r\nb = 2\r\n"}
    )
    repository = Repository.open(project.folder)
    (found,) = chosen(project).candidates
    parts = split_commit(repository, found)
    repository.checkout(found.base, tmp_path / "tree")
    for patch in (parts.test_patch, parts.gold_patch):
        run_git("apply", "-", stdin=patch.encode("utf-8", "surrogateescape"), cwd=tmp_path / "tree")
    for path in repository.files(found.id):
        stored = repository.git("cat-file", "blob", f"{found.id}:{path}")
        assert (tmp_path / "tree" / path).read_bytes() == stored


def test_change_without_a_test_function_is_rejected(project):
    project.commit(
        "Fix it", {"shop/prices.py": FIXED, "tests/data.json": "{}", "tests/conftest.py": "x = 1\n"}
    )
    (found,) = chosen(project).candidates
    with pytest.raises(CommitRejected) as caught:
        modules_of(split_commit(Repository.open(project.folder), found))
    assert caught.value.reason is Reason.NO_TEST_MODULE


def test_repository_configuration_does_not_change_patches(project):
    project.commit("Fix the total", FIX)
    for name, value in (("diff.noprefix", "true"), ("diff.external", "false"), ("color.ui", "always")):
        project.git("config", name, value)
    (found,) = chosen(project).candidates
    patch = split_commit(Repository.open(project.folder), found).gold_patch
    assert patch.startswith("diff --git a/shop/prices.py b/shop/prices.py\n")


def test_texts_skip_missing_and_binary_files(project):
    commit = project.commit("More", {"a.py": "ä\n", "b.bin": b"\xff", "empty.py": ""})
    found = Repository.open(project.folder).texts(commit, ["a.py", "b.bin", "none.py", "empty.py"])
    assert found == {"a.py": "ä\n", "empty.py": ""}
