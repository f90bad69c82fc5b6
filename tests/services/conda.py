"""Layers of images as data sets have them: the conda environment `testbed`, and a repository in /testbed."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from tests.interpreters import find_python, shared_environment
from tests.services.image import compile_modules

TESTBED = "opt/miniconda3/envs/testbed"
_ACTIVATE = """export CONDA_PREFIX=/opt/miniconda3
conda() {
    [ "$1" = activate ] || return 1
    export CONDA_DEFAULT_ENV=$2 CONDA_PREFIX=/opt/miniconda3/envs/$2
    export PATH=$CONDA_PREFIX/bin:$PATH
}
"""
_PYTEST = "#!/{prefix}/bin/python\nimport sys, pytest\nsys.exit(pytest.main())\n"
_NOT_NEEDED = (
    "test",
    "idlelib",
    "turtledemo",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "__pycache__",
    "site-packages",
)


def write_testbed(target: Path, python: str, *requirements: str) -> None:
    """Write a layer with an interpreter and packages in /opt/miniconda3/envs/testbed, and conda's `activate`.

    Skips the test where the interpreter is missing.
    """
    packages = shared_environment(python, *requirements) / "lib" / f"python{python}" / "site-packages"
    found = find_python(python)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prefix = root / TESTBED
        library = prefix / "lib" / f"python{python}"
        stdlib = found.parent.parent / "lib" / f"python{python}"
        shutil.copytree(stdlib, library, ignore=shutil.ignore_patterns(*_NOT_NEEDED, "config-*"))
        shutil.copytree(packages, library / "site-packages", ignore=shutil.ignore_patterns("__pycache__"))
        compile_modules(library, f"/{TESTBED}/lib", found)
        for shared in (found.parent.parent / "lib").glob(f"libpython{python}.so.*"):
            (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True, exist_ok=True)
            shutil.copy(shared, root / "usr/lib/x86_64-linux-gnu")
        (prefix / "bin").mkdir()
        shutil.copy(found, prefix / "bin" / f"python{python}")
        for name in ("python", "python3"):
            (prefix / "bin" / name).symlink_to(f"python{python}")
        (prefix / "bin" / "pytest").write_text(_PYTEST.format(prefix=TESTBED))
        (prefix / "bin" / "pytest").chmod(0o755)
        (prefix / "conda-meta").mkdir()
        (prefix / "conda-meta" / f"python-{python}.0-0.json").write_text("{}")
        (root / "opt/miniconda3/bin").mkdir()
        (root / "opt/miniconda3/bin/activate").write_text(_ACTIVATE)
        write_layer(target, root)


def write_layer(target: Path, root: Path) -> None:
    """Write the files below `root` as a layer whose files belong to root."""
    with tarfile.open(target, "w") as tar:
        tar.add(root, ".", filter=_owned_by_root)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = int(member.mtime)  # as in `tests.services.image`
    return member
