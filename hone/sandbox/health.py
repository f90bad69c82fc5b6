"""Checks of `hone doctor` that every local provider shares: start a sandbox and report what it enforces."""

from __future__ import annotations

from collections.abc import Mapping

from hone.sandbox.contract import Check, Provider, SandboxError, SandboxSpec

_KERNEL_LIMITS = ("sockets", "socket options", "terminals", "machine stores", "shared files")
_PROBE = "id -u && python3 -m pytest --version && git --version"


async def probe_sandbox(provider: Provider, *, image: str, isolation_fix: str = "") -> list[Check]:
    """Open `provider`, start a sandbox of image `host` and return the checks `isolation` and `tools`.

    Args:
        image: the docker image that stands for `host`; "" where `host` is this machine.
    """
    try:
        async with provider, await provider.start(SandboxSpec()) as sandbox:
            result = await sandbox.exec(_PROBE, timeout_s=60)
            isolation = sandbox.enforced["isolation"]
    except (SandboxError, OSError) as error:
        return [Check(name="isolation", ok=False, detail=str(error), fix=isolation_fix)]
    tools = result.text.strip().replace("\n", ", ") or result.stderr.decode("utf-8", "replace").strip()
    fix = "name an image with bash, git, python3 and pytest in sandbox.docker_image" if image else ""
    detail = f"{image}: {tools}" if image else tools
    return [
        Check(name="isolation", ok=True, detail=isolation),
        Check(name="tools", ok=result.exit_code == 0, detail=detail, fix=fix),
    ]


def limit_checks(enforced: Mapping[str, str], fix: str = "") -> list[Check]:
    """Return a check for each limit.

    It is weak where a part is not enforced ("none", "except"); memory, pids and cpus are without a cgroup.
    """
    checks: list[Check] = []
    for name in ("memory", "pids", "cpus", "disk", *_KERNEL_LIMITS):
        how = enforced[name]
        ok = not how.startswith("none") and "except" not in how
        ok = ok and (name not in ("memory", "pids", "cpus") or how == "cgroup")
        check = Check(name=f"limit: {name}", ok=ok, detail=how, fix="" if ok else fix, required=False)
        checks.append(check)
    return checks
