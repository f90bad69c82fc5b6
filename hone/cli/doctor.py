"""`hone doctor`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED
from hone.cli.options import JsonOption, SetOption

if TYPE_CHECKING:
    from hone.config import Plan, RunSettings
    from hone.sandbox.contract import Check, Health
    from hone.sandbox.settings import SandboxSettings

Groups = dict[str, list["Check"]]


def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="Check what this recipe needs, its engines and memory too."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Also check the engine server at URL; may be repeated."),
    ] = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check this machine: devices, torch, memory, disk, sandboxes, services and engines.

    Each line says what was found or is missing, what follows from it, and what to do. With a recipe, also
    print the memory plan of its training and what stands in its way. Exit code 1 if a requirement is missing
    or the recipe does not fit.

    [bold]Example[/bold]: hone doctor

    [bold]Example[/bold]: hone doctor recipes/quickstart.toml --engine http://localhost:8000
    """
    settings = _settings(recipe, sets or [])
    plan, problem = _plan(settings)
    groups = _checks(settings, engine or [])
    every = [check for checks in groups.values() for check in checks]
    less = [check.name for check in every if not check.required and not check.ok]
    missing = [check.name for check in every if check.required and not check.ok]
    missing += [problem] if problem else []
    missing += [] if plan is None else [*filter(None, [plan.refusal]), *plan.missing]
    if as_json:
        _print_json(groups, plan, missing)
    else:
        _print(groups, plan, missing, less)
    return FAILED if missing else 0


def _checks(settings: RunSettings | None, urls: list[str]) -> Groups:
    import asyncio

    from hone.launch.doctor import engine_checks, engine_urls, machine_checks, service_checks
    from hone.sandbox.settings import SandboxSettings

    sandbox = SandboxSettings() if settings is None else settings.sandbox
    named = [] if settings is None else engine_urls(settings)
    return {
        "machine": machine_checks(Path("runs") if settings is None else settings.run_dir),
        f"sandboxes ({sandbox.provider})": list(asyncio.run(_probe(sandbox)).checks),
        "services": service_checks(),
        "engines": list(engine_checks([*urls, *named])),
    }


def _print(groups: Groups, plan: Plan | None, missing: list[str], less: list[str]) -> None:
    from rich.text import Text

    from hone.cli.output import console
    from hone.cli.plan import print_devices, print_notes

    out = console()
    for title, checks in groups.items():
        if checks:
            out.print(Text(title, style="dim"))
        for check in checks:
            mark, style = _mark(check)
            line = Text.assemble((f"{mark:<9}", style), (f"{check.name:<22}", "bold"), check.detail)
            out.print(line, soft_wrap=True)
            for more in (check.effect, check.fix and f"fix it with: {check.fix}") if not check.ok else ():
                if more:
                    out.print(Text(f"{'':<9}{'':<22}{more}"), soft_wrap=True)
    out.print()
    if plan is not None:
        out.print(f"Devices: {plan.machine.machine}.", markup=False)
        print_devices(plan.machine)
        print_notes(plan)
    if missing:
        out.print(f"Not ready: {'; '.join(missing)}.", markup=False)
    else:
        out.print("Ready." if not less else f"Ready, with less: {', '.join(less)}.")


def _mark(check: Check) -> tuple[str, str]:
    if check.ok:
        return "ok", "green"
    return ("missing", "red") if check.required else ("less", "yellow")


def _print_json(groups: Groups, plan: Plan | None, missing: list[str]) -> None:
    from hone.cli.output import print_json

    found: dict[str, Any] = {
        "ready": not missing,
        "missing": missing,
        "checks": [
            {
                "group": title,
                "name": check.name,
                "state": _mark(check)[0],
                "detail": check.detail,
                "effect": "" if check.ok else check.effect,
                "fix": "" if check.ok else check.fix,
            }
            for title, checks in groups.items()
            for check in checks
        ],
    }
    if plan is not None:
        found["warnings"] = list(plan.warnings)
        found["downloads"] = list(plan.downloads)
        found["devices"] = [device.as_json() for device in plan.machine.devices]
    print_json(found)


def _plan(settings: RunSettings | None) -> tuple[Plan | None, str]:
    """Return the plan of the training (of a quickstart, if there is no model), or why there is none."""
    from hone.config import make_plan
    from hone.utils.errors import HoneError

    if settings is None:
        return None, ""
    makes_model = settings.model is None and not settings.makes_model
    try:
        return make_plan(settings, "quickstart" if makes_model else "train"), ""
    except HoneError as error:  # the machine's checks are still worth printing
        return None, str(error)


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
