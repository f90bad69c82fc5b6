import pytest

from hone.curate.mining.candidates import CommitRejected, Reason, select, split_commit, walk
from hone.curate.mining.runs import Observation, RunComparison
from hone.curate.mining.settings import MiningSettings
from hone.curate.mining.statement import Issue, references, write
from hone.tasks.repository import Repository
from tests.curate.mining.projects import BASE, FIXED, TESTS, Project

FAILING = ("tests/test_prices.py::test_of_three",)


def written(tmp_path, message: str, *, issues=None, min_letters: int = 0, log: str = "", **more: str):
    project = Project(tmp_path / "shop")
    files = {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS, **more}
    project.commit(message, files)
    repository = Repository.open(project.folder)
    (candidate,) = select(repository, walk(repository), MiningSettings()).candidates
    parts = split_commit(repository, candidate)
    compared = RunComparison(fail_to_pass=FAILING, pass_to_pass=(), flaky=())
    observed = Observation(compared=compared, log=log, seconds=1.0)
    return write(candidate.message, parts, observed, issues or {}, min_letters)


def test_message_without_the_fix_is_the_statement(tmp_path):
    message = (
        "The first price is left out (#3)\n\nThe total of three prices is too small.\n\n"
        "Better is:\nreturn sum(price for price in prices)\n\nSigned-off-by: Me <me@me>"
    )
    found = written(tmp_path, message)
    assert found.text == "The first price is left out\n\nThe total of three prices is too small."
    assert found.sources == ("commit",)


def test_exported_issue_replaces_the_message(tmp_path):
    issue = Issue(
        number=3, title="Wrong sum", body="I get 5.\n\nreturn sum(price for price in prices) works."
    )
    found = written(tmp_path, "Sum everything by a generator, fixes #3", issues={3: issue})
    assert found.text == "Wrong sum\n\nI get 5."
    assert found.sources == ("issue",)


def test_short_message_is_completed_by_the_failing_tests(tmp_path):
    found = written(tmp_path, "Fix total", min_letters=40)
    assert found.text == "Fix total\n\nThis does not work:\n\n- of three"
    assert found.sources == ("commit", "tests")


def test_message_that_is_the_fix_is_replaced(tmp_path):
    found = written(tmp_path, "Fix: return sum(price for price in prices)", min_letters=40)
    assert found.text == "This does not work:\n\n- of three"


def test_example_is_preferred_where_the_log_shows_a_failure(tmp_path):
    log = (
        "=== FAILURES ===\n___ test_of_three ___\ntests/test_prices.py:9: in test_of_three\n"
        "    assert total([1, 2, 3]) == 6\nE   assert 5 == 6\nE    +  where 5 = total([1, 2, 3])\n"
        "=== short test summary info ===\nFAILED tests/test_prices.py::test_of_three - assert 5 == 6\n"
    )
    found = written(tmp_path, "Fix total", min_letters=40, log=log)
    assert found.text == (
        "Fix total\n\n`total` gives a wrong result (of three)\n\n"
        "```python\nfrom shop import total\n\nassert total([1, 2, 3]) == 6\n```\n\n"
        "The last statement fails:\n\n```\nassert 5 == 6\n```"
    )


def test_new_names_that_the_tests_use_are_listed(tmp_path):
    source = FIXED.replace("total(prices)", "total(prices, *, currency=None, area=isinstance)  # euro")
    tests = TESTS.replace("total([1, 2, 3])", "total([1, 2, 3], currency='euro', area=isinstance)")
    files = {"shop/prices.py": source, "tests/test_prices.py": tests}
    found = written(tmp_path, "Fix total of an area", **files)
    assert found.text == "Fix total of an area\n\nThe tests use these new names: `currency`."
    assert found.sources == ("commit", "names")


def test_new_private_name_in_the_tests_is_refused(tmp_path):
    files = {
        "shop/prices.py": FIXED + "\n_rate = 1\n",
        "tests/test_prices.py": TESTS + "\nshop.prices._rate\n",
    }
    with pytest.raises(CommitRejected) as caught:
        written(tmp_path, "Fix total", **files)
    assert (caught.value.reason, caught.value.detail) == (Reason.PRIVATE_NAMES, "_rate")


def test_references_are_found_with_the_merge_number_last():
    assert references("Merge pull request #70 from me/x\n\nFix it, closes #12 and gh-13") == [12, 13, 70]
    assert references("See https://tracker.example/me/it/issues/5 and issue601") == [5, 601]
    assert references("Since version 1.5, colour #fff and a&#39;b") == []


def test_statement_that_must_reveal_the_fix_is_refused(tmp_path):
    source = BASE["shop/prices.py"] + "\n\ntotal_of_prices = total\nALL = (\n    total_of_prices\n)\n"
    tests = TESTS + "\nassert shop.prices.total_of_prices\n"
    with pytest.raises(CommitRejected) as caught:
        written(tmp_path, "Fix total", **{"shop/prices.py": source, "tests/test_prices.py": tests})
    assert caught.value.reason is Reason.NO_STATEMENT
