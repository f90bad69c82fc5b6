import importlib.metadata
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hone.tasks.errors import TaskError
from hone.tasks.python import lock
from hone.tasks.python.requirements import parse_lines
from hone.tasks.python.sources import specifiers
from hone.tasks.python.tool import last_error_line
from tests.tasks.index import BACKEND, BUILD_SYSTEM, index

__all__ = ["index"]


def repository(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def project(text: str, **files: str) -> dict[str, str]:
    """A distribution that is not built: all is in its pyproject.toml."""
    return {"pyproject.toml": f'[project]\nname = "thing"\nversion = "1.5"\n{text}', "thing.py": "", **files}


def built(plan: dict, **files: str) -> dict[str, str]:
    """A distribution with a build of its own."""
    plan = {"name": "thing", "version": "1.5", "files": {}, **plan}
    return {"pyproject.toml": BUILD_SYSTEM, "backend.py": BACKEND, "plan.json": json.dumps(plan), **files}


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# what is needed


def test_requirements_become_exact_versions(index, tmp_path):
    tree = repository(
        tmp_path / "r",
        project('dependencies = ["click<2"]\noptional-dependencies.tests = ["six", "pytest>=3"]'),
    )
    locked = lock(tree)
    assert locked.requirements == ("click==1.0", "six==2.0")
    assert locked.distribution == "thing==1.5"
    assert locked.paths == ("",)
    assert locked.generated == {}


def test_markers_of_other_interpreters_are_dropped(index, tmp_path):
    line = "dependencies = [\"click; python_version < '3'\", \"six; python_version > '3'\"]"
    assert lock(repository(tmp_path / "r", project(line))).requirements == ("six==2.0",)


def test_project_runner_and_excluded_plugins_are_not_locked(index, tmp_path):
    index.add("pytest", importlib.metadata.version("pytest"), ["pluggy", "iniconfig", "colors"])
    for name in ("pluggy", "iniconfig"):
        index.add(name, importlib.metadata.version(name))
    for name in ("thing", "pytest-xdist", "pytest-cov", "pytest-mock", "colors"):
        index.add(name, "9.0", ["pytest"] if name.startswith("pytest") else [])
    index.add("helper", "1.0", ["thing>=2", "pytest-xdist", "pluggy", "pytest-cov>=99"])
    groups = '[dependency-groups]\ntest = ["pytest", "pytest-cov", "pytest_mock", "helper"]'
    locked = lock(repository(tmp_path / "r", project(groups)))
    assert locked.requirements == ("helper==1.0", "pytest-mock==9.0")


def test_plugin_version_fits_the_pytest_version(index, tmp_path):
    index.add("pytest", importlib.metadata.version("pytest"))
    index.add("pytest-mock", "1.0", ["pytest"])
    index.add("pytest-mock", "2.0", ["pytest>=1000"])
    tree = repository(tmp_path / "r", project('[dependency-groups]\ntest = ["pytest-mock"]'))
    assert lock(tree).requirements == ("pytest-mock==1.0",)


def test_development_tools_are_not_locked(index, tmp_path):
    groups = '[dependency-groups]\ndev = ["click", "ruff", "tox", "Sphinx-copybutton"]'
    assert lock(repository(tmp_path / "r", project(groups))).requirements == ("click==2.0",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "needed"),
    [
        (project('[dependency-groups]\ntest = ["six"]\ndev = ["click"]'), {"six"}),
        (project('[dependency-groups]\nTESTS = [{include-group = "a"}]\na = ["six"]'), {"six"}),
        (project('optional-dependencies.test = ["thing[a]"]\noptional-dependencies.a = ["six"]'), {"six"}),
        (project('[tool.hatch.envs.hatch-test]\nextra-dependencies = ["six"]'), {"six"}),
        (project('[tool.pdm.dev-dependencies]\ntest = ["six"]'), {"six"}),
        (project('[tool.uv]\ndev-dependencies = ["six"]'), {"six"}),
        (project('[tool.poetry.group.test.dependencies]\nsix = "^2"\npython = "^3"'), {"six"}),
        (project('[tool.poetry.dev-dependencies]\nsix = {version = "*"}'), {"six"}),
        (project("", **{"requirements-test.txt": "six  # for this\n\n"}), {"six"}),
        (project("", **{"requirements/tests.in": "six", "requirements/tests.txt": "click"}), {"six"}),
        (project("", **{"tests/requirements.txt": "-r ../more.txt", "more.txt": "six"}), {"six"}),
        (project("", **{"requirements-dev.txt": "six"}), {"six"}),
        (project("", **{"setup.cfg": "[options]\ntests_require =\n    six\n    click\n"}), {"six", "click"}),
        (project("", **{"tox.ini": "[testenv]\ndeps =\n  six\n  py27: mock\n  {[a]deps}\n"}), {"six"}),
        (
            project('optional-dependencies.a = ["six"]', **{"dev-requirements.txt": "-e .[a]\nclick"}),
            {"six", "click"},
        ),
        (project(""), set()),
    ],
)
def test_test_requirements_are_found_in_every_place(index, tmp_path, files, needed):
    locked = lock(repository(tmp_path / "r", files))
    assert {pin.partition("==")[0] for pin in locked.requirements} == needed


def test_unavailable_pins_of_tests_are_relaxed(index, tmp_path):
    files = {"requirements-test.txt": "six==0.1\nclick>=1\n-c bounds.txt", "bounds.txt": "click<2\n"}
    locked = lock(repository(tmp_path / "r", project("", **files)))
    assert locked.requirements == ("click==2.0", "six==2.0")


def test_constraints_hold_when_possible(index, tmp_path):
    files = {"requirements-test.txt": "click\n--constraint bounds.txt", "bounds.txt": "click<2\n"}
    locked = lock(repository(tmp_path / "r", project("", **files)))
    assert locked.requirements == ("click==1.0",)


def test_requirements_without_an_index_are_skipped(index, tmp_path):
    lines = "six\ngit+https://example.com/a.git\n./here\nb @ https://example.com/b.whl\n"
    locked = lock(repository(tmp_path / "r", project("", **{"test-requirements.txt": lines})))
    assert locked.requirements == ("six==2.0",)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (project('dependencies = ["click==7"]'), "cannot be resolved: .*click==7"),
        (project('dependencies = ["click", "nowhere-to-be-found"]'), "nowhere-to-be-found"),
        (project('dependencies = ["a @ https://example.com/a.whl"]'), "which no package index has"),
        (project('dependencies = ["a b"]'), "'a b' is not a requirement"),
        (project('requires-python = "<3.2"'), "thing needs Python <3.2"),
        (project('[dependency-groups]\ntest = [{include-group = "test"}]'), "includes itself"),
        (project("[dependency-groups]\ntest = [1]"), "Invalid dependency group item: 1"),
        (project('[tool.poetry.group.test.dependencies]\nsix = "what?"'), "not a dependency of Poetry"),
        (project("", **{"test-requirements.txt": "-r gone.txt"}), "gone.txt does not exist"),
        (project("", **{"test-requirements.txt": "-r test-requirements.txt"}), "includes itself"),
        (project("", **{"test-requirements.txt": "-r ../../etc"}), "outside of the repository"),
        ({"pyproject.toml": "[project"}, "pyproject.toml is not TOML"),
        ({"setup.cfg": "metadata"}, "setup.cfg cannot be read"),
        (built({"fails": "no compiler today"}), "cannot be built: RuntimeError: no compiler today"),
    ],
)
def test_unusable_project_is_an_error(index, tmp_path, files, said):
    with pytest.raises(TaskError, match=said) as caught:
        lock(repository(tmp_path / "r", files))
    assert "\n" not in str(caught.value)


# the project


def test_build_gives_metadata_paths_and_generated_files(index, tmp_path):
    plan = {
        "version": None,
        "files": {"src/thing/__init__.py": "thing/__init__.py", "src/thing/a.py": "thing/a.py"},
        "written": {"thing/_version.py": "version = {version!r}\n"},
        "metadata": ["Requires-Dist: six", "Provides-Extra: test", "Requires-Dist: click; extra == 'test'"],
    }
    files = {"src/thing/__init__.py": "", "src/thing/a.py": "", "tests/thing/a.py": ""}
    tree = repository(tmp_path / "r", built(plan, **files))
    before = snapshot(tree)
    locked = lock(tree, version="4.2")
    assert locked.distribution == "thing==4.2"
    assert locked.paths == ("src", "")
    assert locked.generated == {"src/thing/_version.py": "version = '4.2'\n"}
    assert locked.requirements == ("click==2.0", "six==2.0")
    assert snapshot(tree) == before
    repository(tree, {"PKG-INFO": "Metadata-Version: 2.1\nName: thing\nVersion: 3.1\n"})
    assert lock(tree).distribution == "thing==3.1"


def test_build_sees_no_home_or_secrets(index, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    plan = {
        "files": {"thing.py": "thing.py"},
        "written": {"seen.py": "{environ}\n"},
    }
    seen = lock(repository(tmp_path / "r", built(plan, **{"thing.py": ""}))).generated["seen.py"]
    assert "hunter2" not in seen
    assert f"'HOME': '{os.environ['HOME']}'" not in seen


@pytest.mark.parametrize(
    ("installed", "files", "paths"),
    [
        ({"thing.py": "thing.py"}, {}, ("",)),
        ({"lib/thing/x.py": "thing/x.py"}, {}, ("lib", "")),
        ({"a/one/x.py": "one/x.py", "b/two/x.py": "two/x.py", "b/two/y.py": "two/y.py"}, {}, ("b", "a", "")),
        ({"src/thing.py": "thing.py"}, {"tests/test_a.py": "from tests.b import c\n"}, ("src", "")),
    ],
)
def test_import_paths_are_found(index, tmp_path, installed, files, paths):
    tree = repository(tmp_path / "r", built({"files": installed}, **dict.fromkeys(installed, ""), **files))
    assert lock(tree).paths == paths


def test_tree_without_a_distribution_uses_requirements_txt(index, tmp_path):
    files = {"requirements.txt": "six", "src/app/main.py": "", "tests/test_a.py": "", "pytest.ini": ""}
    locked = lock(repository(tmp_path / "r", files))
    assert locked.requirements == ("six==2.0",)
    assert locked.distribution == ""
    assert locked.paths == ("src", "")


@pytest.mark.parametrize(
    "files",
    [
        built({"files": {"thing.so": "thing/fast.so"}}, **{"thing.so": ""}),
        built({"files": {"code/x.py": "thing/x.py"}}, **{"code/x.py": ""}),
        built({"fails": "no compiler today"}),
    ],
)
def test_tree_that_cannot_be_imported_from_needs_an_image(index, tmp_path, files):
    with pytest.raises(TaskError, match="give its tasks an image"):
        lock(repository(tmp_path / "r", files))


# reading


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("^1.2.3", ">=1.2.3,<2"),
        ("^0.2.3", ">=0.2.3,<0.3"),
        ("^0.0.3", ">=0.0.3,<0.0.4"),
        ("^0", ">=0,<1"),
        ("~1.2.3", ">=1.2.3,<1.3"),
        ("~1", ">=1,<2"),
        ("1.2.3", "==1.2.3"),
        ("1.*", "==1.*"),
        ("*", ""),
        ("", ""),
        (">=1.2,<3 , !=2.0", ">=1.2,<3,!=2.0"),
        (">= 1.2 <3", ">=1.2,<3"),
        ("^1.0 || ^2.0", ">=2.0,<3"),
        ("~=1.4", "~=1.4"),
    ],
)
def test_poetry_versions_are_translated(written, meant):
    assert SpecifierSet(specifiers(written)) == SpecifierSet(meant)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)


@given(st.lists(st.tuples(NAMES, st.sampled_from(["", "==1.0", ">=2,<3", "~=1.4", "[x]>1"]), st.booleans())))
def test_requirements_file_is_parsed(parts):
    text, expected = "--index-url https://example.com\r\n\n# all of it\n", []
    for name, bound, hashed in parts:
        expected.append(Requirement(name + bound))
        text += f"{name}{bound}  # why: not\r\n"
        if hashed:
            text += f"{name}{bound} \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
            expected.append(Requirement(name + bound))
    read = parse_lines(text, Path("/r/requirements.txt"), Path("/r"))
    assert list(read.requirements) == expected
    assert not read.unavailable


@given(st.text(alphabet=st.sampled_from("ab.-[]<>=1;#\\ \n/@:"), max_size=40))
def test_any_requirements_text_is_read_or_refused(text):
    said = ""
    try:
        parse_lines(text.replace("-r", "").replace("-c", ""), Path("/r/requirements.txt"), Path("/r"))
    except TaskError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("error: No solution found\n  cause: you require a<1\n", "you require a<1"),
        (
            "  \u00d7 No solution found:\n  ╰─▶ Because a is not there.\n\n  hint: b\n",
            "Because a is not there.",
        ),
        (
            "error: Failed to build `a`\n  cause: The backend\n  cause: Call failed\n\n"
            "     [stderr]\n     Traceback\n     KeyError: 'x'\n\nhint: This\n",
            "KeyError: 'x'",
        ),
        (
            "Traceback\nKeyError: 'y'\nerror: Failed to build `a`\n  cause: Call failed\nhint: b",
            "KeyError: 'y'",
        ),
        ("", "no output"),
    ],
)
def test_last_meaningful_line_of_uv_is_shown(said, words):
    assert last_error_line(said) == words
