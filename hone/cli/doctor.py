"""`hone doctor`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone.cli.errors import FAILED
from hone.cli.options import SetOption

if TYPE_CHECKING:
    from hone.sandbox.contract import Health
    from hone.sandbox.settings import SandboxSettings


def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE]", help="Check the sandboxes of this recipe.")
    ] = None,
    sets: SetOption = None,
) -> int:
    """Check that sandboxes work on this machine; print which limits hold and how to fix what is missing.

    Exit code 1 if a requirement is missing.

    [bold]Example[/bold]: hone doctor
    """
    import asyncio

    from rich.text import Text

    from hone.cli.output import console

    health = asyncio.run(_probe(_settings(recipe, sets or [])))
    out = console()
    for check in health.checks:
        mark, style = (
            ("ok", "green") if check.ok else (("missing", "red") if check.required else ("less", "yellow"))
        )
        out.print(Text.assemble((f"{mark:<9}", style), (f"{check.name:<22}", "bold"), check.detail))
        if not check.ok and check.fix:
            out.print(Text(f"{'':<9}{'':<22}fix it with: {check.fix}"), soft_wrap=True)
    out.print()
    missing = [check.name for check in health.checks if check.required and not check.ok]
    less = [check.name for check in health.checks if not check.required and not check.ok]
    if missing:
        out.print(f"Not ready: {', '.join(missing)}.")
        return FAILED
    out.print("Ready." if not less else f"Ready, with less: {', '.join(less)}.")
    return 0


def _settings(recipe: Path | None, sets: list[str]) -> SandboxSettings:
    from hone.cli.errors import UsageError
    from hone.config import resolve
    from hone.sandbox.settings import SandboxSettings

    if recipe is not None:
        return resolve(recipe, sets).sandbox
    if sets:
        raise UsageError(
            "--set changes a recipe: pass one, such as hone doctor recipes/quickstart.toml --set ..."
        )
    return SandboxSettings()


async def _probe(settings: SandboxSettings) -> Health:
    """Return the health of the provider, without opening it."""
    from hone.sandbox import make_provider

    return await make_provider(settings).health()
