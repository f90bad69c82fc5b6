import subprocess
import sys

import pytest

from hone.curate.runner import REWRITE
from hone.curate.statements import parse_failures, test_words
from tests.curate.mutation.offered import dedent

TESTS = dedent("""
    import unittest

    import pytest

    from package import first, parse


    @pytest.fixture
    def broken():
        return first([])


    def test_values():
        x = first([1, 2])
        assert x == 2


    @pytest.mark.parametrize("n", [0, 1])
    def test_param(n):
        assert first([n]) == 0


    def test_error():
        parse("a")


    def test_chained():
        with pytest.raises(KeyError):
            parse("b")


    def test_setup(broken):
        pass


    class TestAll(unittest.TestCase):
        def test_unequal(self):
            self.assertEqual(first("ab"), "b")


    def test_passes():
        assert first([2]) == 2
""")
PACKAGE = dedent("""
    def first(items):
        return items[0]


    def parse(text):
        try:
            return int(text)
        except ValueError:
            raise RuntimeError(f"cannot parse {text!r}")
""")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The failures of a run of these tests with the grader's options."""
    folder = tmp_path_factory.mktemp("tree")
    (folder / "package.py").write_text(PACKAGE)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(TESTS)
    arguments = [*REWRITE, "--tb=short", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "tests"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    names = ["test_values", "test_param[0]", "test_param[1]", "test_error", "test_chained", "test_setup"]
    names += ["TestAll::test_unequal", "test_passes"]
    found = parse_failures(done.stdout, [f"tests/test_it.py::{name}" for name in names])
    return {failure.test.removeprefix("tests/test_it.py::"): failure for failure in found}


def test_every_failing_test_is_found(found):
    assert set(found) == {
        "test_values",
        "test_param[1]",
        "test_error",
        "test_chained",
        "test_setup",
        "TestAll::test_unequal",
    }


def line(failure):
    return TESTS.splitlines()[failure.line - 1].strip()


def test_assertion_shows_both_sides_and_its_line(found):
    assert (line(found["test_values"]), found["test_values"].message) == ("assert x == 2", "assert 1 == 2")
    assert found["test_param[1]"].message == "assert 1 == 0"
    assert found["TestAll::test_unequal"].message.startswith("AssertionError: 'a' != 'b'")


def test_last_error_of_a_chain_is_the_message(found):
    assert (line(found["test_error"]), found["test_error"].message) == (
        'parse("a")',
        "RuntimeError: cannot parse 'a'",
    )
    assert found["test_setup"].message == "IndexError: list index out of range"


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("tests/test_a.py::TestB::test_take_nth[3]", "take nth"),
        ("tests/test_a.py::TestB::testReadsNumbers", "reads numbers"),
        ("tests/test_x.py::TestUrlField::test_no_scheme[a/b::c]", "no scheme"),
        ("t.py::test", "the basic case"),
    ],
)
def test_test_id_becomes_words(test, words):
    assert test_words(test) == words
