import pytest

from hone.curate.mining.chores import without_chores


@pytest.mark.parametrize(
    "line",
    [
        "Update CHANGES.rst, bump version", "Add tests", "* Version 1.2.3", "Apply suggestions from @someone",
        "Fix typo.", "- TODO: later", "black, isort & flake8", "(cherry picked from commit 1234)", "-----",
        "Address review comments", "Add changelog entry for the fix",
    ],
)  # fmt: skip
def test_line_about_chores_is_left_out(line):
    assert (
        without_chores(f"Keep the sign of zero\n\n{line}\n\nIt was lost.")
        == "Keep the sign of zero\n\nIt was lost."
    )


@pytest.mark.parametrize(
    "line",
    [
        "Add tests for negative zero",
        "Fix format of dates",
        "Version numbers are compared as texts",
        "1.5 is not 15",
    ],
)
def test_line_about_the_fix_is_kept(line):
    assert without_chores(line) == line


def test_titles_of_squashed_commits_are_left_out():
    steps = [
        "* fix precision",
        "* handle Decimal",
        f"* The value was rounded twice, {'so ' * 30}it was wrong.",
    ]
    assert without_chores("\n\n".join(["Keep digits", *steps, "-----"])) == f"Keep digits\n\n{steps[2]}"
    assert without_chores("Keep digits\n\n" + "\n".join(steps)) == f"Keep digits\n\n{steps[2]}"
    assert without_chores(f"Keep digits\n\nWhy:\n\n{steps[0]}") == f"Keep digits\n\nWhy:\n\n{steps[0]}"
