"""House rules that can be checked: sizes, documented settings, no machine's paths, docs that run."""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

from hone.cli import main
from hone.config import RunSettings, walk

ROOT = Path(__file__).parent.parent
MAX_LINES, MAX_FUNCTION_LINES = 400, 60
SOURCES = sorted((ROOT / "hone").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
# A user's home directory, or the root of a checkout.
MACHINE_PATHS = re.compile(r"/(?:home|Users)/[a-z]\w*/|(?<!\w)/root/(?!\.ssh)[.\w]|(?<![\w.$)}])/work/")
CONTAINER_COMMANDS = ROOT / "hone" / "tasks" / "specifications" / "data"  # as their harnesses publish them
JOBS = ("train", "sft", "eval", "quickstart")
OTHER_COMMANDS = {"git", "cd", "curl", "head", "sudo", ".venv/bin/python", ".venv/bin/pre-commit"}
OTHER_COMMANDS |= {".venv/bin/pytest", "docker"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_file_is_too_long_to_be_about_one_thing():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.slow
def test_every_function_can_be_read_on_one_screen():
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_no_files_import_each_other_in_a_cycle():
    graph = grimp.build_graph("hone", cache_dir=None)
    unvisited = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    while leaves := [name for name, imported in unvisited.items() if not imported & unvisited.keys()]:
        for name in leaves:
            del unvisited[name]
    assert sorted(unvisited) == []


def test_every_setting_is_documented_in_a_sentence():
    bare = [s.path for s in walk(RunSettings) if not (s.info.description or "").strip().endswith((".", ")"))]
    assert bare == []


@pytest.mark.slow
def test_every_module_has_a_docstring():
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


def test_no_file_names_a_machine_path():
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked()
        if path.name != Path(__file__).name and path.parent != CONTAINER_COMMANDS
        for match in MACHINE_PATHS.finditer(path.read_bytes().decode("utf-8", "replace"))
    ]
    assert found == []


def test_make_test_runs_every_check():
    makefile = (ROOT / "Makefile").read_text()
    for check in ("ruff) check", "ruff) format --check", "pyright)", "lint-imports)"):
        assert f"$(BIN)/{check.replace(')', '')}" in makefile
    assert re.search(r"^test: install lint\b", makefile, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec make test </dev/null")


def test_make_test_is_one_session_of_all_but_the_full_tests():
    makefile = (ROOT / "Makefile").read_text()
    rules = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE))
    sessions = {name: re.findall(r"\$\(PYTEST\) (\S+(?: \"[^\"]*\")?)", rule) for name, rule in rules.items()}
    assert sessions["test"] == ['-m "not sglang and not full"']
    assert sessions["test-full"] == [*sessions["test"], '-m "full and not sglang"']
    assert sessions["fast"] == ["--fast"]


def commands() -> list[tuple[str, str]]:
    """(page, command) of every ```bash block; what only shows output stands in other blocks."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for block in re.findall(r"^ *```bash\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
            lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
            found += [(page.name, line) for line in lines if line.strip() and not line.startswith("#")]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_of_the_docs_is_one_that_runs(page: str, command: str, monkeypatch: pytest.MonkeyPatch):
    """Jobs are resolved by a dry run, other commands of hone are parsed, make's targets have to exist."""
    words = shlex.split(command, comments=True)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # a variable before the command
        del words[0]
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets)
    elif words[0] in ("hone", ".venv/bin/hone"):
        monkeypatch.chdir(ROOT)
        arguments = [word for word in words[1:] if word != "--dry-run"]
        shipped = any(word.startswith("recipes/") for word in arguments)  # not a recipe of the reader
        resolved = arguments[0] in JOBS and shipped and "--help-config" not in arguments
        last = "--dry-run" if resolved else "--help"
        end = arguments.index("--") if "--" in arguments else len(arguments)
        monkeypatch.setattr(sys, "argv", ["hone", *arguments[:end], last, *arguments[end:]])
        assert main() == 0
    else:
        assert words[0] in OTHER_COMMANDS


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!http|#)([^)#]+)[^)]*\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
