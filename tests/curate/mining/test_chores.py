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
