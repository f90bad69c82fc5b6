import asyncio

import pytest

from hone.curate.mining.candidates import CommitRejected, Reason, select, split_commit, walk
from hone.curate.mining.fairness import Fairness, Rating
from hone.curate.mining.settings import MiningSettings
from hone.curate.mining.statement import Issue, references, write
from hone.tasks.repository import Repository
from tests.curate.mining.programs import executes
from tests.curate.mining.projects import BASE, FIXED, TESTS, Project

FAILING = ("tests/test_prices.py::test_of_three",)
EXAMPLE = "This fails today:\n\n```python\nfrom shop import total\n\nassert total([1, 2, 3]) == 6\n```"


def written(
    tmp_path, message: str, *, issues=None, tests=FAILING, min_letters: int = 0, writer=None, **more: str
):
    project = Project(tmp_path / "shop")
    files = {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS, **more}
    project.commit(message, files)
    repository = Repository.open(project.folder)
    (candidate,) = select(repository, walk(repository), MiningSettings()).candidates
    parts = split_commit(repository, candidate)
    trees = [tmp_path / "before", tmp_path / "after"]
    repository.checkout(candidate.base, trees[0])
    repository.checkout(candidate.id, trees[1])
    run = executes(trees[0], trees[1])
    return asyncio.run(write(candidate.message, parts, tests, issues or {}, run, min_letters, writer))


def test_message_without_the_fix_begins_the_statement(tmp_path):
    message = (
        "The first price is left out (#3)\n\nThe total of three prices is too small.\n\n"
        "Better is:\nreturn sum(price for price in prices)\n\n* Update CHANGES.md\n\nSigned-off-by: Me <m@m>"
    )
    found = written(tmp_path, message)
    assert found.text == (
        f"The first price is left out\n\nThe total of three prices is too small.\n\n{EXAMPLE}"
    )
    assert found.sources == ("commit", "tests")
    assert found.fairness == Fairness(rating=Rating.FAIR, untold=())


def test_exported_issue_replaces_the_message(tmp_path):
    issue = Issue(
        number=3, title="Wrong sum", body="I get 5.\n\nreturn sum(price for price in prices) works."
    )
    found = written(tmp_path, "Sum everything by a generator, fixes #3", issues={3: issue})
    assert found.text == f"Wrong sum\n\nI get 5.\n\n{EXAMPLE}"
    assert found.sources == ("issue", "tests")


def test_message_that_is_the_fix_leaves_the_example(tmp_path):
    assert written(tmp_path, "Fix: return sum(price for price in prices)").text == EXAMPLE


def test_new_names_that_the_tests_use_are_listed(tmp_path):
    source = FIXED.replace("total(prices)", "total(prices, *, currency=None, area=isinstance)")
    tests = TESTS + "\n\ndef other():\n    total([], currency='euro', area=isinstance)\n"
    files = {"shop/prices.py": source, "tests/test_prices.py": tests}
    found = written(tmp_path, "Fix total of an area", **files)
    assert found.text == f"Fix total of an area\n\n{EXAMPLE}\n\nThe tests use these new names: `currency`."
    assert found.sources == ("commit", "tests", "names")


def rejection(tmp_path, message: str, **more) -> tuple[Reason, str]:
    with pytest.raises(CommitRejected) as caught:
        written(tmp_path, message, **more)
    return caught.value.reason, caught.value.detail


def test_new_private_name_in_the_tests_is_refused(tmp_path):
    files = {
        "shop/prices.py": FIXED + "\n_rate = 1\n",
        "tests/test_prices.py": TESTS + "\nshop.prices._rate\n",
    }
    assert rejection(tmp_path, "Fix total", **files) == (Reason.PRIVATE_NAMES, "_rate")


HIDDEN = """

class TestTotal:
    def helper(self):
        return [1, 2, 3]

    def test_hidden(self):
        assert total(self.helper()) == 6
        assert str(total(self.helper())) != "a word"
"""
WITH_HIDDEN = {"tests/test_prices.py": TESTS + HIDDEN}
BOTH = (*FAILING, "tests/test_prices.py::TestTotal::test_hidden")
LONG = "The total of three prices is too small, since the first one is left out of the sum."


def test_text_that_nothing_tells_is_refused(tmp_path):
    reason, detail = rejection(tmp_path, LONG, tests=BOTH, **WITH_HIDDEN)
    assert reason is Reason.UNFAIR
    assert detail == "nothing tells what tests/test_prices.py::TestTotal::test_hidden demands: 'a word'"


def test_test_without_an_example_needs_prose(tmp_path):
    text = LONG + ' It must be a number, not "a word".'
    assert written(tmp_path, text, tests=BOTH, min_letters=60, **WITH_HIDDEN).fairness.rating is Rating.FAIR
    reason, detail = rejection(tmp_path / "short", 'Not "a word"', tests=BOTH, min_letters=60, **WITH_HIDDEN)
    assert (reason, detail) == (Reason.UNFAIR, "no example shows what " + BOTH[1] + " demands")


def test_list_of_tests_is_no_prose(tmp_path):
    names = (
        "Add tests/test_prices.py::TestTotal::test_hidden, test_of_three, TestTotal.test_hidden and "
        'test_more.py of "a word"'
    )
    reason, detail = rejection(tmp_path, names, tests=BOTH, min_letters=60, **WITH_HIDDEN)
    assert (reason, detail) == (Reason.UNFAIR, "no example shows what " + BOTH[1] + " demands")
    text = LONG + ' See test_of_three: it must be a number, not "a word".'
    told = written(tmp_path / "told", text, tests=BOTH, min_letters=60, **WITH_HIDDEN)
    assert told.fairness.rating is Rating.FAIR


def test_commit_without_an_example_is_refused(tmp_path):
    assert rejection(tmp_path, LONG + ' "a word"', tests=BOTH[1:], **WITH_HIDDEN) == (
        Reason.UNFAIR, f"no example shows what {BOTH[1]} demands"
    )  # fmt: skip


def test_test_that_limits_the_time_is_refused(tmp_path):
    tests = TESTS + (
        "\n\ndef test_fast():\n    import time\n    start = time.perf_counter()\n"
        "    assert total([1, 2, 3]) == 6\n    assert time.perf_counter() - start < 60\n"
    )
    reason, detail = rejection(
        tmp_path, LONG, tests=("tests/test_prices.py::test_fast",), **{"tests/test_prices.py": tests}
    )
    assert (reason, "limits the time" in detail) == (Reason.UNFAIR, True)


def test_texts_of_parameters_that_are_not_shown_make_a_task_usable(tmp_path):
    sets = ", ".join(f"([{n}, 1], '{n + 1} euro{n}')" for n in range(1, 30))
    tests = (
        "import pytest\nfrom shop import total\n\n"
        f"@pytest.mark.parametrize('prices, text', [{sets}])\ndef test_euro(prices, text):\n"
        "    assert f'{total(prices)} euro{prices[0]}' == text\n"
    )
    failing = tuple(f"tests/test_prices.py::test_euro[{n}]" for n in range(29))
    found = written(tmp_path, LONG, tests=failing, **{"tests/test_prices.py": tests})
    assert found.text.count("assert f'{total([") == 12
    assert found.fairness.rating is Rating.USABLE
    assert "30 euro29" in found.fairness.untold
    assert "2 euro1" not in found.fairness.untold


def test_references_are_found_with_the_merge_number_last():
    assert references("Merge pull request #70 from me/x\n\nFix it, closes #12 and gh-13") == [12, 13, 70]
    assert references("See https://tracker.example/me/it/issues/5 and issue601") == [5, 601]
    assert references("Since version 1.5, colour #fff and a&#39;b") == []


def test_statement_that_must_reveal_the_fix_is_refused(tmp_path):
    source = BASE["shop/prices.py"] + "\n\ntotal_of_prices = total\nALL = (\n    total_of_prices\n)\n"
    tests = TESTS + "\nassert shop.prices.total_of_prices\n"
    files = {"shop/prices.py": source.replace("[1:]", ""), "tests/test_prices.py": tests}
    assert rejection(tmp_path, "Fix total", **files)[0] is Reason.NO_STATEMENT
