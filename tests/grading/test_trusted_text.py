"""What the runner trusts: texts that may skip or xfail, data files, modules of the requirements."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.grading.in_sandbox import hone_data
from hone.grading.in_sandbox.hone_data import DataFiles
from hone.grading.in_sandbox.hone_marks import Texts

PLAIN = "from stats import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"


def may(status: str, **files: str) -> bool:
    """Return whether tests/test_a.py may end with a status; names have `__` for "/" and no ".py"."""
    named = {name.replace("__", "/"): text for name, text in {"tests__test_a": PLAIN, **files}.items()}
    sources = {f"/r/{name.replace('INIT', '__init__')}.py": text.encode() for name, text in named.items()}
    return Texts("/r", sources).may_end_as("tests/test_a.py::test_add", status)


@pytest.mark.parametrize("status", ["skipped", "xfailed"])
def test_plain_text_allows_no_excuse(status: str) -> None:
    assert not may(status)
    other = "@pytest.mark.skip\n@pytest.mark.xfail\ndef test_other(): pass\n"
    assert not may(status, tests__test_b=other)
    assert not may(status, other__conftest=other)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("xfailed", "@pytest.mark.xfail(reason='known')"),
        ("xfailed", "pytestmark = [pytest.mark.xfail]"),
        ("xfailed", "@unittest.expectedFailure"),
        ("xfailed", "@dec.knownfailureif(True)"),
        ("skipped", "np = pytest.importorskip('numpy')"),
        ("skipped", "raise unittest.SkipTest"),
        ("skipped", "@td.skip_if_no_scipy"),
        ("skipped", "@requires_dask"),
        ("skipped", "@needs_usetex"),
        ("skipped", "@pytest.mark.remote_data"),
        ("skipped", ">>> f()  # doctest: +SKIP"),
    ],
)
def test_word_in_a_related_text_allows_the_excuse(status: str, text: str) -> None:
    assert may(status, tests__test_a=text)
    assert may(status, conftest=text)
    assert may(status, tests__conftest=text)
    assert may(status, tests__INIT=text)
    assert may(status, tests__test_a="from .support import *", tests__support="import base", lib__base=text)
    assert may(status, tests__test_a="from kinds import near", tests__kinds__INIT=text)


def test_marks_that_never_skip_allow_no_skip() -> None:
    marked = "@pytest.mark.parametrize('a', [1])\n@pytest.mark.usefixtures('b')\n@pytest.mark.xfail\n"
    assert not may("skipped", tests__test_a=marked)


def test_other_statuses_and_unknown_files_are_allowed() -> None:
    texts = Texts("/r", {"/r/tests/test_a.py": PLAIN.encode()})
    assert texts.may_end_as("tests/test_a.py::test_add", "passed")
    assert texts.may_end_as("test_canary.py::test_canary", "skipped")


def test_only_changed_data_files_are_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    (folder / "data").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    names = ("data/golden.txt", "data/image.png", "test_a.py", "test.db", "__pycache__/a.bin", ".coverage")
    for name in names:
        (folder / name).write_bytes(b"before")
    (tmp_path / "expected.json").write_text("{}")
    data = DataFiles(
        str(tmp_path), ["tests/", "absent/"], ["expected.json", "absent.json", "tests/test_a.py"]
    )
    for name in names[2:]:
        (folder / name).write_bytes(b"after")
    (folder / "data" / "new.txt").write_bytes(b"new")
    (folder / "data" / "golden.txt").unlink()
    (folder / "data" / "golden.txt").write_bytes(b"before")
    assert data.changed() is None
    (tmp_path / "expected.json").write_text("[]")
    assert data.changed() == "expected.json"
    (tmp_path / "expected.json").write_text("{}")
    assert data.changed() is None


@pytest.mark.parametrize("change", ["rewrite", "same time", "delete", "link", "pipe", "folder", "unreadable"])
def test_change_of_a_data_file_is_found(change: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "golden.txt"
    file.write_text("3")
    before = file.stat()
    data = DataFiles(str(tmp_path), ["tests"], [])
    if change in ("rewrite", "same time"):
        file.write_text("4")
        if change == "same time":
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "unreadable":
        file.write_text("4")
        file.chmod(0)
    else:
        file.unlink()
        (tmp_path / "other.txt").write_text("3")
        {
            "delete": lambda: None,
            "link": lambda: file.symlink_to(tmp_path / "other.txt"),
            "pipe": lambda: os.mkfifo(file),
            "folder": file.mkdir,
        }[change]()
    assert data.changed() == "tests/golden.txt"


def test_long_file_counts_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.grading.in_sandbox.hone_data.HASHED_BYTES", 4)
    (tmp_path / "long.bin").write_bytes(b"12345")
    data = DataFiles(str(tmp_path), [""], [])
    (tmp_path / "long.bin").write_bytes(b"123456")
    assert data.changed() == "long.bin"


IMPORTS = """
import sys
sys.path[:0] = {folders!r}
import elsewhere, required, shared
sys.modules["required.made"] = required.made = type(sys)("required.made")  # as the package py does
sys.path.insert(0, {runner!r})
import hone_trusted
import json
before = dict(sys.modules)
job = dict(workdir={tree!r}, paths=[], sites=[{site!r}], framework={other!r}, plugins=[], own=[])
hone_trusted.prepare_imports(job, hone_trusted.Trust({tree!r}, {{}}, print))
import elsewhere, required, shared
names = ("elsewhere", "required", "required.made", "shared", "json")
print([sys.modules[name] is before.get(name) for name in names if name in sys.modules])
print(shared.__file__, elsewhere.__file__)
"""


def test_runner_keeps_modules_of_the_requirements(tmp_path: Path) -> None:
    """An extension module such as numpy's, which a plugin imported, cannot be imported again."""
    places = {"site": ("required", "shared", "elsewhere"), "tree": ("shared",), "other": ("elsewhere",)}
    for folder, names in places.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.py").write_text("")
    site, tree, other = (str(tmp_path / folder) for folder in ("site", "tree", "other"))
    runner = str(Path(hone_data.__file__).parent)
    text = IMPORTS.format(folders=[other, site], runner=runner, tree=tree, site=site, other=other)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "[False, True, True, False, True]",
        f"{tree}/shared.py {site}/elsewhere.py",
    ], done


PROXY = """
import sys, types
sys.path.insert(0, {runner!r})
import hone_trusted

class Unbound:
    def __getattribute__(self, name):
        raise RuntimeError("working outside of a request")

module = types.ModuleType("helpers")
module.request, module.test_x = Unbound(), lambda: None
trust = hone_trusted.Trust("/r", {{}}, print)
trust.define(module)
print(trust.is_defined(module.test_x), trust.is_defined(lambda: None))
"""


def test_helper_module_may_hold_a_proxy_of_nothing() -> None:
    """As `flask.request` is outside of a request."""
    text = PROXY.format(runner=str(Path(hone_data.__file__).parent))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True False"], done
