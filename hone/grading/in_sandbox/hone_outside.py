"""Import what lies outside the repository only, until the gate opens."""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from typing import Any, Iterator

# Plugins that report to other processes, run tests in them, reorder tests or repeat them.
UNWANTED = (
    "xdist", "pytest_cov", "pytest_randomly", "random_order", "pytest_rerunfailures", "flaky", "pytest_sugar",
    "pytest_forked", "pytest_html", "pytest_metadata", "pytest_json", "allure", "pytest_reportlog", "hone.",
)  # fmt: skip


class Outside:
    """The import system without the repository, until the gate opens; the first finder.

    An editable installation or an image puts the repository on sys.path, so any module that the runner,
    `site` or pytest imports could be the patch's. A Python installation inside the repository is no part of
    it: `apply_patch` refuses changes there.
    """

    def __init__(self, workdir: str) -> None:
        self.workdir = os.path.join(os.path.realpath(workdir), "")
        self.installation = os.path.join(os.path.realpath(sys.prefix), "")
        self.known: dict[str, bool] = {}  # path -> whether it lies outside

    def is_outside(self, path: str) -> bool:
        if path not in self.known:
            real = os.path.join(os.path.realpath(path), "")
            installed = self.installation.startswith(self.workdir) and self.installation != self.workdir
            inside = real.startswith(self.workdir)
            self.known[path] = not inside or (installed and real.startswith(self.installation))
        return self.known[path]

    def holds(self, spec: ModuleSpec) -> bool:
        """Return whether a module's file and directories lie outside."""
        places = [*(spec.submodule_search_locations or ())]
        if spec.has_location and spec.origin:
            # the directory decides, unless the file is a link: resolving each file takes longer
            is_link = os.path.islink(spec.origin)
            places.append(spec.origin if is_link else os.path.dirname(spec.origin))
        return all(map(self.is_outside, places))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec:
        """Return the spec of a module outside the repository. Raises ModuleNotFoundError."""
        folders = [folder for folder in (sys.path if path is None else path) if self.is_outside(folder)]
        for finder in sys.meta_path:
            if finder is self:
                continue
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, folders if finder is PathFinder else path, target)
            else:  # of an old setuptools
                loader = finder.find_module(name, path)  # type: ignore[attr-defined]
                spec = None if loader is None else spec_from_loader(name, loader)
            if spec is not None and self.holds(spec):
                return spec
        raise ModuleNotFoundError(f"No module named {name!r} outside the repository", name=name)


def start_site() -> None:
    """Do what `site` does when Python starts, without the modules that customize a start."""
    hooks = ("sitecustomize", "usercustomize")
    for hook in hooks:
        sys.modules[hook] = None  # type: ignore[assignment]  # its import fails
    import site

    site.main()
    for hook in hooks:
        del sys.modules[hook]


def find_plugins(folders: "list[str]", workdir: str) -> "list[str]":
    """Return the modules of pytest plugins installed in `folders`, which the patch cannot change."""
    trusted = [folder for folder in folders if folder and not (folder + "/").startswith(workdir + "/")]
    modules = {module for folder in trusted for module in plugins_in(folder)}
    return sorted(module for module in modules if not module.startswith(UNWANTED))


def plugins_in(folder: str) -> "Iterator[str]":
    """Yield the modules that distributions in a folder name as plugins of pytest.

    `importlib.metadata`, which does the same, came with Python 3.8.
    """
    from configparser import ConfigParser, Error  # most environments of local tasks need no search

    try:
        names = os.listdir(folder)
    except OSError:
        return  # such as a zip file
    for name in names:
        if not name.endswith((".dist-info", ".egg-info")) and name != "EGG-INFO":
            continue
        points = ConfigParser(delimiters="=", interpolation=None, strict=False)
        try:
            points.read(os.path.join(folder, name, "entry_points.txt"), "utf-8")
        except (Error, ValueError):
            continue  # no distribution that can be used
        if points.has_section("pytest11"):
            for _, value in points.items("pytest11"):
                yield value.split("[")[0].partition(":")[0].strip()
