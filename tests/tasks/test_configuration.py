import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.config.findpaths import locate_config
from hypothesis import given
from hypothesis import strategies as st

from hone.tasks.configuration import EXCLUDED_PLUGINS, FILES, kept, pytest_arguments
from hone.tasks.errors import TaskError


def ini(addopts: str, more: str = "") -> dict[str, str]:
    return {"pytest.ini": f"[pytest]\naddopts = {addopts}\n{more}"}


@pytest.mark.parametrize(
    ("addopts", "left"),
    [
        ("", ""),
        ("-ra -q --strict-config", ""),
        ("-rfEsxXP -vv -l --tb=short --durations=10 --durations-min 1 --color=yes", ""),
        ("--cov=pkg --cov-report term-missing --cov-report=xml --no-cov-on-fail --cov pkg", ""),
        ("-n auto --dist loadscope --maxprocesses=4 -n4", ""),
        ("-x --maxfail 3 --lf --ff --sw --pdb --pdbcls=a:b --trace", ""),
        ("--junitxml=out.xml --junit-xml out.xml --html=r.html --self-contained-html", ""),
        ("--randomly-seed=1 --random-order-bucket=global --reruns 3 --only-rerun Flaky", ""),
        ("tests src/pkg -v docs", ""),
        ("--import-mode=importlib --doctest-modules", "--import-mode=importlib --doctest-modules"),
        ("--doctest-glob '*.rst' --doctest-glob=*.md", "--doctest-glob '*.rst' '--doctest-glob=*.md'"),
        ("--ignore doc --ignore=a.py --ignore-glob='a/*'", "--ignore doc --ignore=a.py '--ignore-glob=a/*'"),
        ("--deselect tests/a.py::test_b", "--deselect tests/a.py::test_b"),
        ("-m 'not slow' -k 'not (net or web)'", "-m 'not slow' -k 'not (net or web)'"),
        ("-mfast -k=name", "-m fast -k name"),
        ("-p no:randomly -pno:doctest -p xdist -p pytest_cov.plugin", "-p no:randomly -p no:doctest"),
        ("-p tests.fixtures -p pytester", "-p tests.fixtures -p pytester"),
        ("-Wdefault -W ignore::UserWarning", "-W default -W ignore::UserWarning"),
        ("-sv --capture=sys -vs", "-s --capture=sys -s"),
        ("-o xfail_strict=true -o addopts=-x --override-ini=addopts=", "-o xfail_strict=true"),
        ("-c other.ini --rootdir=. --basetemp=/tmp/x --assert=plain", ""),
        ("--asyncio-mode=auto --hypothesis-profile ci", "--asyncio-mode=auto --hypothesis-profile ci"),
        ("--run-slow --backend numpy --data=here -v", "--run-slow --backend numpy --data=here"),
        ("--run-slow tests -v", "--run-slow"),
        ("-E fast -Xa", "-E fast -Xa"),
        ("--benchmark-skip --timeout=60", "--benchmark-skip --timeout=60"),
    ],
)  # fmt: skip
def test_options_about_tests_are_kept(addopts, left):
    assert pytest_arguments(ini(addopts)) == tuple(shlex.split(left))


def test_directory_is_not_the_value_of_an_unknown_option():
    files = ini("--run-slow checks/unit", "testpaths = checks/unit checks/all\n")
    assert pytest_arguments(files) == ("--run-slow",)


REAL = {
    "pyproject.toml": (
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\nfilterwarnings = ["error"]\n'
        'markers = ["stress: many times"]\naddopts = ["-m", "not stress"]\n'
    ),
    "tox.ini": "[tox]\nenvlist = py311\n[pytest]\naddopts = -ra\n    --ignore=a\n    --doctest-modules\n",
    "setup.cfg": "[tool:pytest]\naddopts = --strict-markers -p no:warnings\nmarkers =\n    slow: long\n",
    "pytest.toml": '[pytest]\naddopts = ["--import-mode=importlib", "-ra"]\nstrict = true\n',
}


def test_toml_lists_are_words():
    assert pytest_arguments({"pyproject.toml": REAL["pyproject.toml"]}) == (
        "-m", "not stress",
        "-W", "ignore::pytest.PytestConfigWarning",
        "-W", "ignore::pytest.PytestUnknownMarkWarning",
    )  # fmt: skip
    assert pytest_arguments({"pytest.toml": REAL["pytest.toml"]})[0] == "--import-mode=importlib"
    native = '[tool.pytest]\naddopts = ["-k", "a b", "-v"]\n'
    assert pytest_arguments({"pyproject.toml": native}) == ("-k", "a b")


def test_ini_lines_are_one_list():
    assert pytest_arguments({"tox.ini": REAL["tox.ini"]}) == ("--ignore=a", "--doctest-modules")


def test_markers_of_excluded_plugins_are_declared():
    arguments = pytest_arguments({"setup.cfg": REAL["setup.cfg"]})
    assert arguments[:4] == ("--strict-markers", "-p", "no:warnings", "-o")
    assert arguments[4].startswith("markers=slow: long\n")
    assert "\nxdist_group" in arguments[4]


def test_plugins_are_not_required():
    files = ini("", "required_plugins = pytest-xdist>=2 pytest-mock\n")
    assert pytest_arguments(files) == ("-o", "required_plugins=")


HOSTILE = """
[pytest]
addopts = -n auto --cov=. --strict-markers -p xdist --reruns 2 --html=report.html -x -ra
filterwarnings = error
required_plugins = pytest-xdist pytest-cov
markers = slow: takes long
looponfailroots = src
"""


@pytest.mark.slow
def test_run_works_without_the_plugins(tmp_path):
    (tmp_path / "pytest.ini").write_text(HOSTILE)
    marks = ("flaky(reruns=3)", "xdist_group('a')", "slow", "unheard_of")
    tests = [f"@pytest.mark.{mark}\ndef test_it(): pass\n" for mark in marks]
    arguments = pytest_arguments({"pytest.ini": HOSTILE})
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", *arguments, "test_it.py"]
    env = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    codes: list[int] = []
    for test in tests:
        (tmp_path / "test_it.py").write_text(f"import pytest\n{test}")
        codes.append(subprocess.run(command, cwd=tmp_path, env=env, check=False).returncode)
    assert codes == [0, 0, 0, 2]  # unknown markers are as forbidden as the repository wants them


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject.toml": "[tool.pytest"},
        {"tox.ini": "addopts = 1"},
        {"pyproject.toml": "tool = 1"},
        {"pytest.ini": "[pytest]\naddopts = -k 'open"},
    ],
)
def test_unreadable_configuration_is_an_error(files):
    with pytest.raises(
        TaskError, match=rf"the pytest options in {next(iter(files))} cannot be read"
    ) as caught:
        pytest_arguments(files)
    assert "\n" not in str(caught.value)


TEXTS = {
    "toml": ["", "[pytest]\n", '[pytest]\naddopts = ["-k", "NAME"]\n'],
    "ini": ["", "[pytest]\n", "[pytest]\naddopts = -k NAME\n", "[other]\naddopts = -k no\n"],
    "pyproject": ["", "[tool.pytest.ini_options]\n", '[tool.pytest]\naddopts = ["-k", "NAME"]\n',
                  "[project]\n", '[tool.pytest.ini_options]\naddopts = "-k NAME"\n'],
    "cfg": ["", "[tool:pytest]\n", "[tool:pytest]\naddopts = -k NAME\n", "[metadata]\nname = a\n"],
}  # fmt: skip


def _texts(name: str) -> list[str]:
    kind = name.rsplit(".", 1)[1]
    return [text.replace("NAME", name) for text in TEXTS["pyproject" if "pyproject" in name else kind]]


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(_texts(name)) for name in FILES}))
def test_first_file_with_options_counts(tmp_path_factory, files):
    root: Path = tmp_path_factory.mktemp("root")
    for name, text in files.items():
        (root / name).write_text(text)
    _, _, options, _ = locate_config(root, [root])
    value = options["addopts"].value if "addopts" in options else []
    assert pytest_arguments(files) == tuple(value.split() if isinstance(value, str) else value)


WORDS = st.text(max_size=6) | st.sampled_from([
    "-v", "-x", "-sv", "-k", "-m", "-n", "-p", "xdist", "no:a", "tests", "a b", "", "-W", "error", "--tb",
    "--tb=no", "--cov", "--cov=a", "--ignore", "--ignore=x", "--mine", "--mine=1", "-Z", "-o", "a=b",
    "addopts=-x", "--", "-",
])  # fmt: skip


@given(st.lists(WORDS, max_size=12))
def test_filtering_is_idempotent_and_keeps_the_order(words):
    left = kept(words)
    assert kept(left) == left
    rest = iter("".join(words).replace("=", ""))
    assert all(letter in rest for letter in "".join(left).replace("=", "").replace("-", ""))


@given(st.lists(st.text(max_size=8), max_size=6))
def test_quoting_follows_the_shell(values):
    words = [word for value in values for word in ("-k", value)]
    text = "[pytest]\naddopts = " + shlex.join(words)
    if text.isprintable() or not any(ord(c) < 32 or c in "\x85\u2028\u2029" for c in "".join(values)):
        assert pytest_arguments({"pytest.ini": text}) == tuple(words)


def test_excluded_plugins_have_canonical_names():
    assert all(name == name.lower() and "_" not in name for name in EXCLUDED_PLUGINS)
    assert list(EXCLUDED_PLUGINS) == sorted(EXCLUDED_PLUGINS)
