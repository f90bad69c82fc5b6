"""`hone doctor`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import FAILED
from hone.cli.options import SetOption

if TYPE_CHECKING:
    from hone.config import Command, RunSettings
    from hone.sandbox.contract import Health
    from hone.sandbox.settings import SandboxSettings


def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="Check sandboxes and memory of this recipe."),
    ] = None,
    sets: SetOption = None,
) -> int:
    """Check that sandboxes work on this machine; print which limits hold and how to fix what is missing.

    Lists the GPUs and, for a recipe, the memory plan of its training. Exit code 1 if a requirement is missing
    or the recipe does not fit.

    [bold]Example[/bold]: hone doctor
    """
    import asyncio

    from rich.text import Text

    from hone.cli.output import console
    from hone.sandbox.settings import SandboxSettings

    settings = _settings(recipe, sets or [])
    health = asyncio.run(_probe(SandboxSettings() if settings is None else settings.sandbox))
    out = console()
    for check in health.checks:
        mark, style = (
            ("ok", "green") if check.ok else (("missing", "red") if check.required else ("less", "yellow"))
        )
        out.print(Text.assemble((f"{mark:<9}", style), (f"{check.name:<22}", "bold"), check.detail))
        if not check.ok and check.fix:
            out.print(Text(f"{'':<9}{'':<22}fix it with: {check.fix}"), soft_wrap=True)
    out.print()
    refused = _print_devices(settings)
    missing = [check.name for check in health.checks if check.required and not check.ok]
    less = [check.name for check in health.checks if not check.required and not check.ok]
    if missing:
        out.print(f"Not ready: {', '.join(missing)}.")
    if refused:
        out.print(f"Not ready: {refused}.", markup=False)
    if missing or refused:
        return FAILED
    out.print("Ready." if not less else f"Ready, with less: {', '.join(less)}.")
    return 0


def _print_devices(settings: RunSettings | None) -> str:
    """Print this machine's devices, and the plan of `settings`; return why it does not fit, or ""."""
    from hone.cli.output import console
    from hone.cli.plan import print_devices
    from hone.config.device_plan import plan_devices
    from hone.config.fitting import refusal
    from hone.config.placement import devices_of_run
    from hone.utils.devices import find_devices

    devices = find_devices()
    console().print(f"Devices: {devices.describe()}.", markup=False)
    for number, gpu in enumerate(devices.gpus):
        used = ", ".join(f"process {pid}" for pid in gpu.processes)
        free = f"{gpu.free_gib:.1f} of {gpu.memory_gib:.1f} GiB free"
        console().print(f"GPU {number}: {gpu.name}, {free}{used and f', used by {used}'}", markup=False)
    if settings is None:
        return ""
    makes_model = settings.model is None and not settings.makes_model
    command: Command = "quickstart" if makes_model else "train"
    devices = devices_of_run(settings, devices)
    print_devices(plan_devices(settings, command, devices))
    return refusal(settings, command, devices)


def _settings(recipe: Path | None, sets: list[str]) -> RunSettings | None:
    from hone.cli.errors import UsageError
    from hone.config import resolve

    if recipe is not None:
        return resolve(recipe, sets, command="train")
    if sets:
        raise UsageError("--set changes a recipe: pass one, such as hone doctor quickstart --set ...")
    return None


async def _probe(settings: SandboxSettings) -> Health:
    """Return the health of the provider, without opening it."""
    from hone.sandbox import make_provider

    return await make_provider(settings).health()
