"""Run uv in an isolated environment with a time limit; install requirements into a directory with it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import uv
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError, Unresolvable
from hone.tasks.python.interpreters import Interpreter, find_interpreter
from hone.types import Environment
from hone.utils.files import build_directory, make_readable
from hone.utils.text import digest

TIMEOUT_S = 300  # of one run of uv
OLD_TOOLS = "setuptools<72"  # the last with `setup.py test` and pkg_resources without a warning

# Variables that name package sources; uv's other variables could change the result.
_KEPT = (
    "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT", "UV_INDEX",
    "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER", "UV_NATIVE_TLS", "UV_OFFLINE", "UV_SYSTEM_CERTS",
)  # fmt: skip
_KEPT_LIKE = re.compile(r"UV_INDEX_\w+|(?:https?|all|no)_proxy", re.IGNORECASE)
# Of an index that does not answer. uv takes one that refuses access for one that lacks the package.
_NO_ANSWER = re.compile(
    r"Failed to fetch|Request failed|error sending request|the network was disabled"
    r"|An index .*(?:returned a \d+|could not be queried)"
)
_FRAME = re.compile(r"^(?:error:|cause:|Caused by:|[\u00d7├╰│─▶ ]+)+")  # its frames depend on the version


def run_uv(
    arguments: Sequence[str],
    *,
    failure: str,
    env: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    python: Path | None = None,
) -> str:
    """Return uv's standard output.

    uv has the user's package indexes and cache, but neither the home directory nor settings of the tree. When
    a build fails, it runs again with older build tools for old sources. Blocks for at most 2 * TIMEOUT_S.

    Args:
        failure: start of the error message.
        env: variables added to its environment.
        held: file descriptors that it inherits.
        python: the interpreter that it works for; None is the one that runs Hone.
    Raises:
        Unresolvable: `failure`, and uv's last meaningful line.
        TaskError: the same, where uv did not come to a result, such as without an answer of the index; it has
            tried such a request four times.
    """
    arguments = [*arguments, "--python", str(python or sys.executable)]
    with tempfile.TemporaryDirectory(prefix="hone-uv-") as scratch:
        code, out, stderr = _run(arguments, scratch, env or {}, held, failure)
        second = ""
        if code and "Failed to build" in stderr:
            constraints = Path(scratch) / "build-constraints.txt"
            constraints.write_text(f"{OLD_TOOLS}\n")
            again = [*arguments, "--build-constraints", str(constraints)]
            code, out, second = _run(again, scratch, env or {}, held, failure)
    if code == 0:
        return out
    reason = f"{failure}: {last_error_line(stderr)}"
    if _NO_ANSWER.search(stderr + second):
        raise TaskError(f"{reason}. The package index did not answer: run the command again")
    raise Unresolvable(reason) if code == 1 else TaskError(reason)


def pretended_version(version: str) -> dict[str, str]:
    """Return variables that give a project's version to builds that ask version control for it."""
    names = (
        "SETUPTOOLS_SCM_PRETEND_VERSION",  # also for hatch-vcs and flit-scm
        "PDM_BUILD_SCM_VERSION",
        "PBR_VERSION",
        "POETRY_DYNAMIC_VERSIONING_BYPASS",
        "UV_DYNAMIC_VERSIONING_BYPASS",
    )
    return dict.fromkeys(names, version)


def _run(
    arguments: Sequence[str], scratch: str, env: Mapping[str, str], held: Sequence[int], failure: str
) -> tuple[int, str, str]:
    try:
        process = subprocess.Popen(
            [uv.find_uv_bin(), *arguments],
            cwd=scratch,
            env={**_environment(scratch), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            umask=0o022,
            pass_fds=held,
            start_new_session=True,
        )
    except OSError as error:  # find_uv_bin raises FileNotFoundError
        raise TaskError(f"{failure}: uv cannot be run ({error}); run: pip install uv") from error
    with process:
        try:
            out, stderr = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the builds that it started
            if isinstance(error, subprocess.TimeoutExpired):
                raise TaskError(f"{failure}: not done after {TIMEOUT_S} s") from None
            raise
    return process.returncode, out, stderr


def _environment(home: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or _KEPT_LIKE.fullmatch(name)}
    configuration = _users("XDG_CONFIG_HOME", ".config") / "uv.toml"
    if "UV_CONFIG_FILE" not in kept and configuration.is_file():
        kept["UV_CONFIG_FILE"] = str(configuration)
    elif "UV_CONFIG_FILE" not in kept:
        kept["UV_NO_CONFIG"] = "1"
    return {
        "UV_CACHE_DIR": str(_users("XDG_CACHE_HOME", ".cache")),
        **kept,
        "HOME": home,
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "10000",  # messages on one line
        "NO_COLOR": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
    }


def _users(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "uv"


def last_error_line(stderr: str) -> str:
    """Return the most specific line of uv's standard error; of a build, the last line."""
    stderr = re.split(r"^\s*hint:", stderr, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in stderr.splitlines() if line.strip(" ^~│")]
    start = next((i for i, line in enumerate(lines) if line.startswith("error:") or "\u00d7" in line), 0)
    error = lines[start:]
    if error and "Failed to build" in error[0] and "[stderr]" not in stderr and start:
        error = lines[:start]
    return _FRAME.sub("", error[-1].strip()).strip() if error else "no output"


SITE_TARGET = "/srv/hone/site"  # where sandboxes mount the directory

_LAYOUT = 2  # version of the layout; a new number rebuilds all directories
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_SHADOWING = ("test", "tests")  # installed by mistake by some packages; they would hide the repository's own


def install(environment: Environment, cache: Path) -> Path | None:
    """Return the directory with the installed distributions, for SITE_TARGET; None when nothing is required.

    It has exactly `environment.requirements` for the interpreter `environment.python`, byte-compiled, and
    metadata of `environment.distribution` for importlib.metadata. Every user can read it. It is built once by
    `build_directory`; the build blocks and needs the package index.

    Raises TaskError when a requirement is not pinned, does not exist, or cannot be built, and when this
    machine does not have the interpreter.
    """
    if not environment.requirements and not environment.distribution:
        return None
    for pin in filter(None, (*environment.requirements, environment.distribution)):
        if not _PIN.fullmatch(pin):
            raise TaskError(f"{pin!r} is not a pinned requirement: write name==version")
    own = canonicalize_name(environment.distribution.partition("==")[0])
    if any(canonicalize_name(pin.partition("==")[0]) == own for pin in environment.requirements):
        raise TaskError(f"{own} is among its own requirements: a release of it would be imported instead")
    interpreter = find_interpreter(environment.python)
    target = cache / f"site-{_name(environment, interpreter)}"
    try:
        return build_directory(target, lambda partial, lock: _make(environment, interpreter, partial, lock))
    except OSError as error:
        raise TaskError(f"cannot install the repository's requirements below {cache}: {error}") from error


def _name(environment: Environment, interpreter: Interpreter) -> str:
    tag = f"{sys.implementation.cache_tag.partition('-')[0]}-{interpreter.minor.replace('.', '')}"
    python = [interpreter.version, tag, sysconfig.get_platform()]
    return digest([_LAYOUT, python, sorted(environment.requirements), environment.distribution])


def _make(environment: Environment, interpreter: Interpreter, site: Path, lock: int) -> None:
    if environment.requirements:
        wanted = site / "requirements.txt"
        wanted.write_text("".join(f"{pin}\n" for pin in sorted(environment.requirements)))
        # copied: with links, a writer to uv's cache would change this directory
        command = ["pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--target", str(site)]
        # uv inherits the lock: if this process is killed, the next build waits until uv exits
        failure = "the repository's requirements cannot be installed"
        command += ["--requirements", str(wanted)]
        run_uv(command, failure=failure, held=[lock], python=interpreter.path)
        wanted.unlink()
        (site / ".lock").unlink(missing_ok=True)
    for name in _SHADOWING:
        shutil.rmtree(site / name, ignore_errors=True)
    for script in (site / "bin").glob("*"):
        _use_any_python(script)
    _compile(site, interpreter)
    if environment.distribution:
        _record(environment.distribution, site)
    make_readable(site)


def _use_any_python(script: Path) -> None:
    """Make a script use the Python of the sandbox instead of the host's path."""
    content = script.read_bytes()
    first, newline, rest = content.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        script.write_bytes(b"#!/usr/bin/env python3" + newline + rest)


def _compile(site: Path, interpreter: Interpreter) -> None:
    """Byte-compile without later checks of the sources: a sandbox cannot change them."""
    unchecked = ["--invalidation-mode", "unchecked-hash"] if interpreter.minor != "3.6" else []  # since 3.7
    command = [str(interpreter.path), "-I", "-m", "compileall", "-q", "-q", *unchecked]
    command += ["-d", SITE_TARGET, str(site)]
    try:  # the exit code is ignored: some files may be for another Python
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TaskError(f"the repository's requirements were not compiled within {TIMEOUT_S} s") from None


def _record(distribution: str, site: Path) -> None:
    """Write metadata, so that importlib.metadata finds a distribution that is imported from its sources."""
    name, _, version = distribution.partition("==")
    folder = site / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "INSTALLER").write_text("hone\n")
    files = ("METADATA", "INSTALLER", "RECORD")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{file},,\n" for file in files))
