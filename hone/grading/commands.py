"""The test run in a script's test command, which the trusted runner takes over.

    pytest, python -m pytest                                     PYTEST
    python -m unittest, ./tests/runtests.py, manage.py test,     UNITTEST
      setup.py test, a script that uses unittest
    bin/test of sympy                                            SYMPY
    make TARGET, tox --current-env, a Python script              `Indirect`: files of the tree say it

Of any other command, the log decides.
"""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import PurePosixPath

from hone.tasks.configuration import pytest_arguments

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_PYTEST_VALUES = (
    "-n", "-p", "-k", "-m", "-o", "-W", "-c", "-r", "--tb", "--color", "--rootdir", "--maxfail",
    "--durations",
)  # fmt: skip
_SYMPY_FLAGS = {"-C": "SYMPY_USE_CACHE=no", "--no-cache": "SYMPY_USE_CACHE=no"}
_SYMPY_IGNORED = (
    "-v",
    "--verbose",
    "--no-colors",
    "--force-colors",
    "--no-subprocess",
    "--tb=no",
    "--tb=short",
)
_OTHER_RUNNERS = re.compile(r"\bnose\b|\bpytest\b|\btrial\b|\bgreen\b|\bxmlrunner\b")
_VARIABLE = re.compile(r"\$[({](\w+)[)}]")
_DEPTH = 5  # of targets that name targets


class Suite(StrEnum):
    PYTEST = "pytest"
    UNITTEST = "unittest"  # and what runs on its loader and runner, as Django's tests do
    SYMPY = "sympy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCommand:
    """A test run of one of the suites."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    suite: Suite
    python: tuple[str, ...]  # the command that starts its interpreter
    arguments: tuple[str, ...] = ()  # of pytest: options that decide what is collected
    files: tuple[str, ...] = ()  # that hold the tests; of unittest some may not exist
    program: tuple[str, ...] = ()  # of unittest: the script, or "-m" and the module; then its arguments
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Indirect:
    """A command that runs what a file of the tree says; see `follow`."""

    files: tuple[str, ...]  # the files that say it; those that exist are read
    words: tuple[str, ...]  # the command
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def find_command(text: str) -> TestCommand | Indirect | None:
    """Return the test run of a test command; None for another runner, or for several commands.

    >>> find_command("python -m pytest -rA --tb=no tests/test_a.py").files
    ('tests/test_a.py',)
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    try:
        words = shlex.split(lines[0]) if len(lines) == 1 else []
    except ValueError:
        return None
    if words[-1:] == ["2>&1"]:
        words = words[:-1]
    if any(set(word) & set(";|&<>$`") for word in words):
        return None
    env: dict[str, str] = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    return _find(words, env) if words else None


def _find(words: Sequence[str], env: Mapping[str, str]) -> TestCommand | Indirect | None:
    folder, _, name = words[0].rpartition("/")
    beside = (f"{folder}/python" if folder else "python",)
    if name in ("pytest", "py.test"):
        return _pytest(beside, words[1:], env)
    if name in ("make", "tox"):
        files = ("Makefile", "makefile", "GNUmakefile") if name == "make" else ("tox.ini", "setup.cfg")
        return Indirect(files=files, words=(name, *words[1:]), env=env)
    if _PYTHON.fullmatch(words[0]):
        return _python((words[0],), list(words[1:]), env)
    if _below(words[0]) == "bin/test":
        return _sympy(("python",), words[1:], env)
    if name.endswith(".py"):
        return _script(("python",), words, env)
    return None


def _python(
    python: tuple[str, ...], words: list[str], env: Mapping[str, str]
) -> TestCommand | Indirect | None:
    """Return what `python` runs, after its own options: warnings are kept, the others change no result."""
    warnings: list[str] = []
    while words and words[0].startswith("-") and words[0] != "-m":
        option = words.pop(0)
        if option in ("-W", "-X") and words:
            value = words.pop(0)
            warnings += [value] if option == "-W" else []
        elif option.startswith("-W"):
            warnings.append(option[2:])
        elif option not in ("-B", "-u", "-bb", "-b") and not option.startswith("-X"):
            return None
    if warnings:
        env = {**env, "PYTHONWARNINGS": ",".join(filter(None, [env.get("PYTHONWARNINGS", ""), *warnings]))}
    if words[:2] == ["-m", "pytest"]:
        return _pytest(python, words[2:], env)
    if words[:2] == ["-m", "unittest"] or words[:3] == ["-m", "django", "test"]:
        return _unittest(python, words, env)
    if words and _below(words[0]) == "bin/test":
        return _sympy(python, words[1:], env)
    return _script(python, words, env) if words and words[0].endswith(".py") else None


def _pytest(python: tuple[str, ...], words: Sequence[str], env: Mapping[str, str]) -> TestCommand:
    options: list[str] = []
    files: list[str] = []
    for number, word in enumerate(words):
        of_option = word.startswith("-") or (number > 0 and words[number - 1] in _PYTEST_VALUES)
        (options if of_option else files).append(word)
    arguments = pytest_arguments({"pytest.ini": f"[pytest]\naddopts = {shlex.join(options)}"})
    return TestCommand(suite=Suite.PYTEST, python=python, arguments=arguments, files=tuple(files), env=env)


def _script(
    python: tuple[str, ...], words: Sequence[str], env: Mapping[str, str]
) -> TestCommand | Indirect | None:
    name = PurePosixPath(words[0]).name
    if words[0].startswith("/"):
        return None
    if name == "runtests.py" and "--settings" in " ".join(words):  # Django's own
        return _unittest(python, words, env)
    if name == "manage.py":
        return _unittest(python, words, env) if "test" in words[1:2] else None
    if name == "setup.py":
        return Indirect(files=("setup.py", "setup.cfg"), words=(*python, *words), env=env)
    return Indirect(files=(_below(words[0]),), words=(*python, *words), env=env)


def _unittest(python: tuple[str, ...], words: Sequence[str], env: Mapping[str, str]) -> TestCommand:
    """Return a run in one process: Django's would otherwise start several."""
    program = list(words)
    for place, word in enumerate(program):
        if (
            word == "--parallel"
            and place + 1 < len(program)
            and re.fullmatch(r"\d+|auto", program[place + 1])
        ):
            program[place + 1] = "1"
        elif word == "--parallel" or word.startswith("--parallel="):
            program[place] = "--parallel=1"
    folder = "" if program[0] == "-m" else str(PurePosixPath(_below(program[0])).parent)
    named = [word for word in program[1 + (not folder) :] if not word.startswith("-")]
    files = {file for word in named for file in module_files(word)}
    if folder not in ("", "."):
        files |= {f"{folder}/{file}" for word in named for file in module_files(word)}
    return TestCommand(
        suite=Suite.UNITTEST, python=python, program=tuple(program), files=tuple(sorted(files)), env=env
    )


def module_files(name: str) -> tuple[str, ...]:
    """Return the file of a module; none for what is no name of one.

    >>> module_files("pkg.test_a"), module_files("pkg/test_a.py"), module_files("2")
    (('pkg/test_a.py',), ('pkg/test_a.py',), ())
    """
    if name.endswith(".py"):
        return (_below(name),)
    dotted = re.fullmatch(r"[A-Za-z_]\w*(?:\.\w+)*", name)
    return (f"{name.replace('.', '/')}.py",) if dotted else ()


def _sympy(python: tuple[str, ...], words: Sequence[str], env: Mapping[str, str]) -> TestCommand | None:
    files: list[str] = []
    for word in words:
        if word in _SYMPY_FLAGS:
            name, _, value = _SYMPY_FLAGS[word].partition("=")
            env = {**env, name: value}
        elif word.endswith(".py") and not word.startswith("-"):
            files.append(_below(word))
        elif word not in _SYMPY_IGNORED:
            return None
    if not files:
        return None
    return TestCommand(suite=Suite.SYMPY, python=python, files=tuple(files), env=env)


def _below(path: str) -> str:
    return path.removeprefix("./")


def follow(indirect: Indirect, texts: Mapping[str, str], depth: int = _DEPTH) -> TestCommand | None:
    """Return the test run that an indirect command leads to; None where its files do not say it plainly.

    Args:
        texts: those of its files that exist, by name; they must be trusted.
    """
    tool, *words = indirect.words
    if tool == "make":
        text = next((texts[name] for name in indirect.files if name in texts), None)
        command = None if text is None else _of_make(text, words)
    elif tool == "tox":
        command = _of_tox(texts, words)
    elif words and words[0].endswith("setup.py"):
        plain = "test" in words[1:2] and not any(map(_OTHER_RUNNERS.search, texts.values()))
        return _unittest((tool,), words, indirect.env) if plain and texts else None
    else:
        text = "".join(texts.values())
        uses = re.search(r"\bimport unittest\b|\bfrom unittest\b", text) and not _OTHER_RUNNERS.search(text)
        return _unittest((tool,), words, indirect.env) if uses else None
    found = None if command is None else find_command(command)
    if isinstance(found, Indirect):
        found = follow(found, texts, depth - 1) if depth and set(found.files) <= set(indirect.files) else None
    return None if found is None else replace(found, env={**indirect.env, **found.env})


def _of_make(text: str, words: Sequence[str]) -> str | None:
    """Return the one command that a target runs, with the makefile's own variables."""
    targets = [word for word in words if not word.startswith("-") and "=" not in word]
    if len(targets) != 1 or any(word.startswith("-") for word in words):
        return None
    joined = text.replace("\\\n", " ")
    values = dict(re.findall(r"^(\w+)\s*[:?]?=\s*(.*?)\s*$", joined, re.MULTILINE))
    values |= dict(word.split("=", 1) for word in words if "=" in word)
    rules = {
        target: (needs.split(), [line[1:] for line in recipe.splitlines() if line.startswith("\t")])
        for target, needs, recipe in re.findall(
            r"^([\w.-]+)\s*:(?!=)([^\n=]*)\n((?:\t[^\n]*\n?|[ ]*#[^\n]*\n)*)", joined + "\n", re.MULTILINE
        )
    }
    target = targets[0]
    for _ in range(_DEPTH):
        needs, recipe = rules.get(target, ([], []))
        if any(rules.get(each, ([], []))[1] for each in needs) and recipe:
            return None  # other commands run first
        if len(recipe) == 1:
            return _expanded(recipe[0].strip().lstrip("@-"), values)
        if recipe or len(needs) != 1:
            return None
        target = needs[0]
    return None


def _expanded(command: str, values: Mapping[str, str]) -> str | None:
    for _ in range(_DEPTH):
        if any(name not in values for name in _VARIABLE.findall(command)):
            return None
        changed = _VARIABLE.sub(lambda found: values[found[1]], command)
        if changed == command:
            return command
        command = changed
    return None


def _of_tox(texts: Mapping[str, str], words: Sequence[str]) -> str | None:
    """Return the command of a tox environment that runs in the present one (`--current-env`)."""
    ours, _, given = shlex.join(words).partition(" -- ")
    options = shlex.split(ours)
    names = [word[2:] for word in options if word.startswith("-e") and len(word) > 2]
    names += [value for word, value in pairwise(options) if word == "-e"]
    if "--current-env" not in options or len(names) > 1:
        return None
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    for name, prefix in (("tox.ini", ""), ("setup.cfg", "tox:")):
        try:
            parser.read_string(texts.get(name, ""))
        except configparser.Error:
            return None
        for section in (*(f"{prefix}testenv:{name}" for name in names), f"{prefix}testenv"):
            if parser.has_option(section, "commands"):
                return _tox_command(parser, section, given)
    return None


def _tox_command(parser: configparser.ConfigParser, section: str, given: str) -> str | None:
    lines = [line.strip() for line in parser.get(section, "commands").splitlines() if line.strip()]
    if len(lines) != 1 or re.match(r"[\w{},!-]+:\s", lines[0]):
        return None
    command = re.sub(
        r"\{posargs(?::((?:[^{}]|\{[^{}]*\})*))?\}", lambda found: given or found[1] or "", lines[0]
    )
    command = command.replace("{envpython}", "python").replace("{toxinidir}/", "").lstrip("-").strip()
    variables: list[str] = []
    for option in ("setenv", "set_env"):
        for line in parser.get(section, option, fallback="").splitlines():
            name, joined, value = (part.strip() for part in line.partition("="))
            if joined and name != "PYTEST_ADDOPTS":
                variables.append(f"{name}={shlex.quote(value)}")
    whole = " ".join([*variables, command])
    return None if "{" in whole else whole
