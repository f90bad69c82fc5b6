"""Evidence in files that Python, git, a shell or pytest load by themselves: names, conftest.py, options."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping

from hone.environment.patch import folders_around
from hone.grading.integrity.changes import Change
from hone.grading.integrity.patch_context import PatchContext, is_test_code
from hone.grading.integrity.patterns import compile_search, find_all
from hone.tasks.configuration import FILES

_CUSTOMIZE = {"sitecustomize.py", "usercustomize.py"}
_BYTECODE = (".pyc", ".pyo")
_WEIGHTS = (b"PK\x03\x04", b"\x80")  # first bytes of PyTorch weight files, also named .pth
_GIT_HOOKS = {
    "applypatch-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit",
    "post-index-change", "post-merge", "pre-applypatch", "pre-commit", "reference-transaction",
}  # fmt: skip
_FILTER = re.compile(r"^[^#\n]*\s(?:filter=(?!lfs\b)\S+|working-tree-encoding=\S+)", re.MULTILINE)
_TOOL = re.compile(
    r"(?:py\.?test|python[\d.]*|pypy3?|git|bash|sh|dash|env|timeout|tox|nox|nosetests|unittest|coverage"
    r"|pip[\d.]*|uv|cat|grep|sed|ls|cp|mv|rm|mkdir|touch|chmod)"
)
_FRAMEWORK = {
    "_pytest", "conftest", "coverage", "hypothesis", "iniconfig", "mock", "nose", "numpy", "pandas", "pluggy",
    "py", "pytest", "pytest_asyncio", "pytest_cov", "pytest_mock", "pytest_timeout", "scipy", "xdist",
}  # fmt: skip
_TEST_FRAMEWORK = {"_pytest", "conftest", "doctest", "iniconfig", "pluggy", "py", "pytest", "unittest"}
# Standard library modules that are also common directory names and that no test runner imports.
_ORDINARY = {"code", "distutils", "idlelib", "lib2to3", "site", "test", "this", "turtledemo"}
_IMPORTED = (sys.stdlib_module_names - _ORDINARY) | _FRAMEWORK


def scan_name(change: Change, context: PatchContext) -> str | None:
    """Scan the file's name and type; see `scan_patch`."""
    if context.environments and not context.environments.isdisjoint(folders_around(change.path)):
        return None  # nothing imports from a virtual environment in the patch
    return _startup(change) or _git(change) or _tool(change) or _shadow(change, context)


def _startup(change: Change) -> str | None:
    if change.deleted:
        return None
    if change.created and change.name in _CUSTOMIZE:
        return "is run by every Python process that starts"
    if change.created and change.name.endswith(_BYTECODE):
        return "is bytecode that Python would run in place of a source file"
    if change.name.endswith(".pth") and not (change.binary or b"").startswith(_WEIGHTS):
        return "is a path file, whose lines Python runs when it starts"
    return None


def _git(change: Change) -> str | None:
    parts = change.path.lower().split("/")
    if ".git" in parts:
        return "lies in git's own directory"
    in_hooks = any(part.endswith("hooks") for part in parts[:-1])
    if change.name in _GIT_HOOKS and in_hooks and not change.deleted:
        return "is a hook that git runs"
    if change.name == ".gitmodules" and not change.deleted:
        return "has git put another repository in place of a directory"
    if change.name != ".gitattributes":
        return None
    found = next(find_all(_FILTER, "\n".join(change.lines("+"))), None)
    return f"has git run files through a filter: {found.group().strip()!r}" if found else None


def _tool(change: Change) -> str | None:
    if change.mode in ("100755", "120000") and not change.deleted and _TOOL.fullmatch(change.name):
        return "is a program under the name of one that runs tests"
    return None


def _shadow(change: Change, context: PatchContext) -> str | None:
    """Return why a new module or package would replace one that the tests import, or None."""
    if not change.created or not change.path.endswith(".py"):
        return None
    module = change.path.removesuffix("/__init__.py").removesuffix(".py")
    folder, _, name = module.rpartition("/")
    if name in context.own_names and name not in _TEST_FRAMEWORK:
        return None
    package = change.name == "__init__.py"
    where = f"{folder}/" if folder else ""
    if where in context.roots:
        known = name in _IMPORTED or name in context.requirements
    else:
        known = where in context.test_folders and name in _TEST_FRAMEWORK | _FRAMEWORK
    if not known or (name == "conftest" and not package):
        return None
    return f"would be imported in place of {name}, which the tests use"


# Deciding hooks are evidence by themselves; of observing hooks, their bodies are examined.
_DECIDING = (
    "runtest_protocol|runtestloop|pyfunc_call|report_teststatus|ignore_collect|pycollect_makemodule"
    "|pycollect_makeitem|load_initial_conftests|cmdline_main|cmdline_preparse"
)
_OBSERVING = (
    "runtest_makereport|runtest_logreport|runtest_call|runtest_setup|collection_modifyitems|sessionstart"
    "|sessionfinish|itemcollected|collection_finish|terminal_summary|configure|unconfigure|make_collect_report"
    "|generate_tests|collectreport|plugin_registered|exception_interact|deselected"
)


def _hook(names: str) -> re.Pattern[str]:
    name = rf"pytest_(?:{names})\b"
    return compile_search(
        rf"^[ \t]*(?:async +)?def +{name}|^[ \t]*{name} *=|\bimport\b.*\b{name}|specname\s*=\s*[\"']{name}"
    )


_DECIDES, _OBSERVES = _hook(_DECIDING), _hook(_OBSERVING)
_CHANGES = compile_search(
    r"\.outcome\s*=(?!=)|[\"']outcome[\"']|\bforce_result\b|\.longrepr\s*=(?!=)|\bexcinfo\s*=(?!=)|\bwasxfail\b"
    r"|\bTestReport\b|\bexitstatus\s*=(?!=)|\bitems\[[^\]\n]{0,99}\]\s*=(?!\s*(?:sorted|list\(reversed))"
    r"|\bitems\.(?:clear|remove|pop)\b|\bdel items\b|\bitem\.(?:obj|runtest)\s*=(?!=)"
    r"|\bpluginmanager\.(?:register|unregister|set_blocked|import_plugin)\b"
    r"|\boption\.(?:keyword|markexpr|deselect|ignore|ignore_glob|maxfail|collectonly)\s*=(?!=)"
    r"|\.stats(?:\.clear|\.pop|\[[^\]\n]{0,99}\]\s*=(?!=))|\bos\._exit\b"
)
_LEAVES_OUT = re.compile(r"\b(?:skip|xfail)\b")
_COLLECT_IGNORE = re.compile(  # to the last bracket on the first line that has one
    r"^[ \t]*collect_ignore(?:_glob)?\b"
    r"(?:[^\n]*[\])]|[^\n]*+(?:\n[^\n=\])]*+){1,50}+[\])](?:[^\n=]*[\])])?)",
    re.MULTILINE,
)
_ENTRY_POINT = re.compile(r"\bpytest11\b[^\n]{0,80}")
_PACKAGING = {"pyproject.toml", "setup.cfg", "setup.py", "entry_points.txt"}


def scan_plugins(change: Change, context: PatchContext) -> str | None:
    """Scan pytest hooks and plugin registrations; see `scan_patch`."""
    if change.deleted:
        return None
    if change.name == "conftest.py":
        return _hooks(change, context) or _ignored(change, context)
    if context.about_pytest:
        return None
    if change.name in _PACKAGING:
        found = context.old.first_new(_ENTRY_POINT, "\n".join(change.lines("+")))
        if found is not None:
            return f"registers a plugin of the test runner: {found!r}"
    # pytest calls no hooks of test modules
    is_test_module = is_test_code(change.path) and change.name.startswith("test_")
    return _hooks(change, context) if change.path.endswith(".py") and not is_test_module else None


def _hooks(change: Change, context: PatchContext) -> str | None:
    code, old = change.added_code, context.old
    named = "pytest_" in code
    if named and (decides := old.first_new(_DECIDES, code)) is not None:
        return f"replaces a part of the test runner: {decides!r}"
    watches = old.first_new(_OBSERVES, code) if named else None
    seen = watches is not None or change.name == "conftest.py"
    if seen and (changes := old.first_new(_CHANGES, code)) is not None:
        return f"has a hook that changes the test runner's collection or reports: {changes!r}"
    if watches is not None and "collection_modifyitems" in watches and old.first_new(_LEAVES_OUT, code):
        return f"has a hook that excludes tests: {watches!r}"
    return None


def _ignored(change: Change, context: PatchContext) -> str | None:
    folder = change.path.removesuffix("conftest.py")
    found = context.old.first_new(_COLLECT_IGNORE, change.added_code)
    if found is None:
        return None
    ignored = _Patterns(map(_path, re.findall(r"[\"']([^\"']+)[\"']", found)), context)
    for test in context.tests:
        if test.startswith(folder) and ignored.cover(test.removeprefix(folder)):
            return f"makes pytest ignore the graded tests in {test}"
    return None


def _path(word: str) -> str:
    return word.removeprefix("./").rstrip("/")


class _Patterns:
    """Words of an option: names, paths and globs; looking up a path costs its length and all globs."""

    def __init__(self, words: Iterable[str], context: PatchContext, before: str = "") -> None:
        """`before`: put before every glob. Raises PatchRefused for globs that take too long to compile."""
        words = dict.fromkeys(words)
        self.plain = frozenset(word for word in words if not _GLOB.search(word))
        self._globs: list[re.Pattern[str]] = []
        self._budget = context.budget
        for word in words:
            if word not in self.plain:
                self._budget.spend(len(word) * _STEPS_TO_COMPILE)
                self._globs.append(re.compile(fnmatch.translate(before + word)))

    def match(self, text: str) -> bool:
        """Return whether a glob matches `text`."""
        self._budget.spend(len(self._globs) * _STEPS_TO_MATCH)
        return any(glob.match(text) for glob in self._globs)

    def cover(self, path: str) -> bool:
        """Return whether a path, a directory or a glob matches `path` or one of its parents."""
        around = (path, *(folder.rstrip("/") for folder in folders_around(path)))
        return not self.plain.isdisjoint(around) or self.match(path)


_GLOB = re.compile(r"[*?\[]")
_STEPS_TO_COMPILE, _STEPS_TO_MATCH = 2000, 100  # a character of a glob; a glob with a name; see Budget
_OPTION = re.compile(r"\s*[\"']?([A-Za-z_][\w.-]*)[\"']?\s*[=:](?!=)\s*(.*)$")
_PLUGINS_OF_CORE = {"main", "python", "runner", "unittest", "skipping", "terminal", "fixtures", "reports"}
_NEVER_RUNS = {
    "--co", "--collect-only", "--collectonly", "--setup-only", "--setup-plan", "--version", "--help", "-h",
    "--fixtures", "--markers", "--noconftest", "-x", "--exitfirst", "--lf", "--last-failed", "--sw",
    "--stepwise",
}  # fmt: skip
_REDIRECTS = {"-c", "--config-file", "-o", "--override-ini", "--rootdir", "--confcutdir", "--maxfail", "-k"}


def scan_configuration(change: Change, context: PatchContext) -> str | None:
    """Scan pytest options that exclude tests or load plugins; see `scan_patch`."""
    if change.name not in FILES or change.deleted:
        return None
    options = _added_options(change)
    for name, check in _CHECKS.items():
        if options.get(name) and (reason := check(options[name], context)):
            return f"changes pytest's {name} so that {reason}"
    return None


def _added_options(change: Change) -> dict[str, list[str]]:
    """Return option -> the new words in its value."""
    known = {word for text in change.lines("-") for word in _words(text)}
    added: dict[str, list[str]] = {}
    for hunk in change.hunks:
        # the option of a hunk that starts inside a value
        name = "addopts" if change.name.endswith("pytest.ini") else ""
        for sign, text in hunk.after:
            continued = text.startswith((" ", "\t")) and change.name.endswith(("ini", "cfg"))
            match = None if continued else _OPTION.match(text)
            if match is not None:
                name = match[1].rpartition(".")[2]
            elif text.lstrip().startswith("[") and text.rstrip().endswith("]") and "=" not in text:
                name = ""
            if sign == "+":
                words = _words(match[2] if match is not None else text)
                added.setdefault(name, []).extend(words)
    return {name: words for name, words in added.items() if any(word not in known for word in words)}


def _words(text: str) -> list[str]:
    text = re.sub(r"(?:^|\s)[#;].*$", "", text)
    return re.sub(r"[\[\],\"'\\]", " ", text).split()


def _addopts(words: list[str], context: PatchContext) -> str | None:
    pairs = zip(words, [*words[1:], ""], strict=True)
    for word, following in pairs:
        option, _, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in ("-p", "-k", "-m", "-c", "-o"):
            option, value = word[:2], word[2:]
        value = value or following
        if option in _NEVER_RUNS or option in _REDIRECTS:
            return f"not every test is run as it was: {word!r}"
        only_off = value.startswith("no:") and value.removeprefix("no:") not in _PLUGINS_OF_CORE
        if option == "-p" and not context.about_pytest and not only_off:
            return f"a plugin is loaded: {value!r}"
        if option == "-m" and value.lower() not in ("not", "("):
            return f"unmarked tests are deselected: {value!r}"
        if option in ("--ignore", "--ignore-glob", "--deselect") and _hides(value, context):
            return f"graded tests are excluded: {value!r}"
    return None


def _hides(value: str, context: PatchContext) -> bool:
    path, _, name = value.partition("::")
    path = _path(path)
    name = name.split("[")[0].rpartition("::")[2] or name

    def names(functions: Collection[str]) -> bool:
        return not name or name in functions or name[:1].isupper()

    if path in context.names_below and names(context.names_below[path]):
        return True
    glob = _Patterns([path], context)
    return path not in glob.plain and any(
        glob.match(test) and names(functions) for test, functions in context.tests.items()
    )


def _python_files(words: list[str], context: PatchContext) -> str | None:
    files = _Patterns(words, context, before="*")
    for test in context.tests:
        ends = (test[start:] for start in range(len(test)))
        if files.plain.isdisjoint(ends) and not files.match(test):
            return f"{test} is not collected"
    return None


def _python_functions(words: list[str], context: PatchContext) -> str | None:
    known = _Patterns(words, context)
    names = ((test, name) for test, functions in context.tests.items() for name in functions)
    for test, name in names:
        starts = (name[:end] for end in range(1, len(name) + 1))
        if name.startswith("test") and known.plain.isdisjoint(starts) and not known.match(name):
            return f"{test}::{name} is not collected"
    return None


def _python_classes(words: list[str], context: PatchContext) -> str | None:
    classes = _Patterns(words, context)
    collected = not classes.plain.isdisjoint(("T", "Te", "Tes", "Test", "TestX")) or classes.match("TestX")
    return None if collected else "test classes are not collected"


def _testpaths(words: list[str], context: PatchContext) -> str | None:
    paths = _Patterns(map(_path, words), context)
    inside = "." in words or "*" in words or any(paths.cover(test) for test in context.tests)
    return None if inside else "the graded tests lie outside"


def _norecursedirs(words: list[str], context: PatchContext) -> str | None:
    folders = _Patterns((word.rstrip("/") for word in words), context)
    for test in context.tests:
        names = test.split("/")[:-1]
        if not folders.plain.isdisjoint(names) or any(map(folders.match, names)):
            return f"{test} is not collected"
    return None


_CHECKS: Mapping[str, Callable[[list[str], PatchContext], str | None]] = {
    "addopts": _addopts,
    "python_files": _python_files,
    "python_functions": _python_functions,
    "python_classes": _python_classes,
    "testpaths": _testpaths,
    "norecursedirs": _norecursedirs,
}
