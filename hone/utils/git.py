"""Environment variables for git commands whose behaviour must not depend on the machine's configuration."""

from __future__ import annotations

from collections.abc import Mapping

ISOLATED: Mapping[str, str] = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}  # no user or system configuration, no prompt, no replace refs
HOST: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", **ISOLATED}


def config(values: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that set configuration values for one command.

    Example: config({"safe.directory": "*"}) is the environment form of `git -c safe.directory=*`.
    """
    variables = {"GIT_CONFIG_COUNT": str(len(values))}
    for index, (key, value) in enumerate(values.items()):
        variables |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return variables


def identity(name: str, email: str, *, date: str | None = None) -> dict[str, str]:
    """Environment variables that name author and committer and fix both dates, so that hashes repeat."""
    variables: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        variables |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": email}
        if date is not None:
            variables[f"GIT_{role}_DATE"] = date
    return variables
