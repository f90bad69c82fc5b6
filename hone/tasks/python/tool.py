"""Runs uv in an isolated environment with a time limit; its errors become one sentence."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import uv

from hone.tasks.errors import TaskError

TIMEOUT_S = 300  # of one run of uv
OLD_TOOLS = "setuptools<72"  # the last with `setup.py test` and pkg_resources without a warning

# Variables that name package sources; uv's other variables could change the result.
_KEPT = (
    "PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_HTTP_TIMEOUT", "UV_INDEX", "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER", "UV_NATIVE_TLS", "UV_OFFLINE", "UV_SYSTEM_CERTS",
)  # fmt: skip
_KEPT_LIKE = re.compile(r"UV_INDEX_\w+|(?:https?|all|no)_proxy", re.IGNORECASE)
_FRAME = re.compile(r"^(?:error:|cause:|Caused by:|[\u00d7├╰│─▶ ]+)+")  # its frames depend on the version


def run_uv(
    arguments: Sequence[str],
    *,
    what: str,
    env: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
) -> str:
    """Return uv's standard output.

    uv has the user's package indexes and cache, but neither the home directory nor settings of the tree. When
    a build fails, it runs again with older build tools for old sources. Blocks for at most 2 * TIMEOUT_S.

    Args:
        what: start of the error message.
        env: variables added to its environment.
        held: file descriptors that it inherits.
    Raises:
        TaskError: `what`, and uv's last meaningful line.
    """
    with tempfile.TemporaryDirectory(prefix="hone-uv-") as scratch:
        code, out, stderr = _run(arguments, scratch, env or {}, held, what)
        if code and "Failed to build" in stderr:
            constraints = Path(scratch) / "build-constraints.txt"
            constraints.write_text(f"{OLD_TOOLS}\n")
            again = [*arguments, "--build-constraints", str(constraints)]
            code, out, _ = _run(again, scratch, env or {}, held, what)
    if code:
        raise TaskError(f"{what}: {last_error_line(stderr)}")
    return out


def _run(
    arguments: Sequence[str], scratch: str, env: Mapping[str, str], held: Sequence[int], what: str
) -> tuple[int, str, str]:
    try:
        process = subprocess.Popen(
            [uv.find_uv_bin(), *arguments, "--python", sys.executable],
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
        raise TaskError(f"{what}: uv cannot be run ({error}); run: pip install uv") from error
    with process:
        try:
            out, stderr = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the builds that it started
            if isinstance(error, subprocess.TimeoutExpired):
                raise TaskError(f"{what}: not done after {TIMEOUT_S} s") from None
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
