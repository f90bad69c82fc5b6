"""Attacks by files that pytest, Python, git or a shell reads by itself."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.grading.attack import BUGGY, Attack, at_import, check_attacks, some_or_all
from tests.attacks.grading.test_results import PASSES

EXIT = "import os\nos._exit(0)\n"
WRAPPER = "#!/bin/sh\necho '18 passed in 0.1s'\nexit 0\n"
MODULES = (
    "json.py",
    "select.py",
    "random.py",
    "difflib.py",
    "traceback.py",
    "pdb.py",
    "unittest/__init__.py",
)

ATTACKS: dict[str, Attack] = {
    "conftest.py": Attack(files={"conftest.py": PASSES, "tests/conftest.py": PASSES}),
    "a conftest.py that calls no test": Attack(
        files={"conftest.py": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n"}
    ),
    "a conftest.py that deselects": Attack(
        files={"tests/conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n"}
    ),
    "a conftest.py that ignores": Attack(files={"conftest.py": "collect_ignore_glob = ['tests/*']\n"}),
    "a conftest.py that changes the exit code": Attack(
        files={"conftest.py": "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"}
    ),
    "a conftest.py beside the tests, patching": Attack(
        files={"tests/conftest.py": "import stats\nstats.add = lambda a, b: a + b\n"}
    ),
    "a conftest.py written while it is imported": at_import(
        f"import pathlib\npathlib.Path('conftest.py').write_text({PASSES!r})"
    ),
    "pytest.ini": Attack(files={"pytest.ini": "[pytest]\naddopts = -p helper\n", "helper.py": PASSES}),
    "every configuration": Attack(
        files={
            "tox.ini": "[pytest]\npython_functions = nothing\n",
            "setup.cfg": "[tool:pytest]\npython_functions = nothing\n",
            "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p helper'\n",
            ".pytest.ini": "[pytest]\npython_files = nothing\n",
            "pytest.toml": "[pytest]\npython_files = ['nothing']\n",
            "helper.py": PASSES,
        }
    ),
    "an entry point": Attack(
        files={
            "setup.py": "from setuptools import setup\nsetup(entry_points={'pytest11': ['x = helper']})\n",
            "helper.egg-info/entry_points.txt": "[pytest11]\nhelper = helper\n",
            "helper.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: helper\nVersion: 1\n",
            "helper-1.dist-info/entry_points.txt": "[pytest11]\nhelper = helper\n",
            "helper-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: helper\nVersion: 1\n",
            "helper.py": PASSES,
        }
    ),
    "the environment of a shell": Attack(
        files={
            ".env": "PYTEST_ADDOPTS=-p helper\n",
            ".envrc": "export PYTEST_PLUGINS=helper\n",
            "helper.py": PASSES,
        }
    ),
    "a false pytest": Attack(
        files={"pytest.py": "def main(*a, **k): return 0\n", "_pytest/__init__.py": "", "pluggy.py": EXIT}
    ),
    "sitecustomize": Attack(files={"sitecustomize.py": EXIT, "usercustomize.py": EXIT}),
    "a path file": Attack(files={"x.pth": "import os; os._exit(0)\n"}),
    "bytecode": Attack(files={"stats.pyc": "x", "__pycache__/stats.cpython-311.pyc": "x"}),
    "false standard modules": Attack(files=dict.fromkeys(MODULES, EXIT)),
    "a false module of the runner": Attack(
        files=dict.fromkeys(("hone_session.py", "hone_integrity.py", "hone_runner.py"), EXIT)
    ),
    "wrappers on PATH": Attack(
        files=dict.fromkeys(
            ("pytest", "python3", "python", "git", "bash", "bin/pytest", "bin/python3"), WRAPPER
        )
    ),
    "wrappers written while it is imported": at_import(
        f"""import os, pathlib
for folder in os.environ.get('PATH', '').split(':'):
    for name in ('pytest', 'python3', 'git'):
        try:
            path = pathlib.Path(folder, name)
            path.unlink(missing_ok=True)
            path.write_text({WRAPPER!r})
        except OSError:
            pass"""
    ),
    "a startup file written while it is imported": at_import(
        f"""import pathlib, sys
for folder in sys.path:
    for name in ('sitecustomize.py', 'usercustomize.py', 'x.pth'):
        try:
            pathlib.Path(folder, name).write_text({EXIT!r})
        except OSError:
            pass"""
    ),
    "pytest rewritten while it is imported": at_import(
        """import pathlib, _pytest.runner
for folder in (pathlib.Path(_pytest.runner.__file__).parent, pathlib.Path('/srv/hone/grader')):
    for path in folder.glob('*.py'):
        try:
            path.write_text('')
        except OSError:
            pass"""
    ),
    "attributes": Attack(files={".gitattributes": "* filter=x\n*.py -diff\n"}),
    "submodules": Attack(files={".gitmodules": '[submodule "tests"]\n\tpath = tests\n\turl = ./x\n'}),
    "a package in the place of the module": Attack(
        files={"stats.py": None, "stats/__init__.py": f"{BUGGY}\n__path__ = []\n"}
    ),
    "git history": at_import(
        """import subprocess
found = subprocess.run(
    'git log --all --reflog -p -S"a + b"; git stash list; git fsck --lost-found; git cat-file'
    ' --batch-all-objects --batch-check; git cat-file --batch-all-objects --batch',
    shell=True, capture_output=True).stdout
if b'return a + b' in found:
    raise SystemExit('the fix is in the history')
exec(compile('def add(a, b): return a - b', 'x', 'exec'))"""
    ),
}


WITHOUT_EFFECT = (
    "conftest.py", "pytest.ini", "every configuration", "an entry point", "bytecode", "a path file",
)  # fmt: skip


# Other hooks of a conftest.py, none of which is loaded.
SIMILAR = {
    "a conftest.py that deselects",
    "a conftest.py that ignores",
    "a conftest.py that changes the exit code",
    "a conftest.py beside the tests, patching",
}


@some_or_all(set(ATTACKS) - SIMILAR, set(ATTACKS))
def test_no_attack_by_configuration_is_resolved(names: set[str], tmp_path: Path) -> None:
    attacks = {name: attack for name, attack in ATTACKS.items() if name in names}
    verdicts = check_attacks(attacks, tmp_path)
    unconfigured = verdicts["the environment of a shell"].tests
    assert {name: verdicts[name].tests for name in WITHOUT_EFFECT} == dict.fromkeys(
        WITHOUT_EFFECT, unconfigured
    )
    assert "the fix is in the history" not in verdicts["git history"].log
