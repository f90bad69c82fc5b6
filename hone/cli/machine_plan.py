"""`hone plan`"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hone.cli.errors import FAILED, UsageError
from hone.cli.options import JsonOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from hone.config import Command, RunSettings
    from hone.utils.devices import Devices


def plan(
    recipe: RecipeArgument,
    sets: SetOption = None,
    command: Annotated[
        Literal["train", "sft", "replay", "eval", "quickstart"], typer.Option(help="The command to plan.")
    ] = "train",
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Plan for machines with N GPUs, not for this one."),
    ] = None,
    gpu_memory: Annotated[float, typer.Option(metavar="GIB", help="Memory of each GPU, with --gpus.")] = 80.0,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of machines, with --gpus.")] = 1,
    host_memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Memory of each machine, with --gpus; default: twice its GPUs'."),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Simulate the training: its speed by staleness, servers, sandboxes."),
    ] = False,
    from_run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="With --simulate: take durations from this run's directory."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print the memory that a recipe needs on each device, and whether it fits.

    Nothing is loaded or started. If the recipe does not fit, the plan names settings that do, and the exit
    code is 1. With --simulate, print how many rollouts an hour the training would make instead; with --gpus,
    the engine then has every GPU that the trainer leaves.

    [bold]Example[/bold]: hone plan debugger-8b --gpus 4 --gpu-memory 80
    """
    from hone.config import resolve

    settings = resolve(recipe, sets or (), command=command)
    devices = _devices(settings, gpus, gpu_memory, nodes, host_memory)
    if not simulate:
        if from_run is not None:
            raise UsageError("--from-run has no effect without --simulate: pass both")
        return _print_memory(recipe, settings, command, devices, as_json=as_json)
    if command != "train":
        raise UsageError(f"--simulate has no effect with --command {command}: it simulates a training")
    from hone.cli.simulated import print_simulation

    return print_simulation(recipe, settings, devices, from_run, fill=gpus is not None, as_json=as_json)


def _print_memory(
    recipe: Path, settings: RunSettings, command: Command, devices: Devices, *, as_json: bool
) -> int:
    from hone.cli.output import console, print_json
    from hone.cli.plan import print_devices
    from hone.config.device_plan import plan_devices
    from hone.config.fitting import refusal

    machine, problem = plan_devices(settings, command, devices), refusal(settings, command, devices)
    if as_json:
        print_json(
            {
                "recipe": str(recipe),
                "machine": machine.machine,
                "fits": machine.fits,
                "problem": problem,
                "step_seconds": machine.step_seconds,
                "devices": [device.as_json() for device in machine.devices],
            }
        )
    else:
        console().print(f"Plan of {recipe} for {machine.machine}.", markup=False)
        print_devices(machine)
        console().print(problem or f"Fits {machine.summary}.", markup=False)
    return FAILED if problem else 0


def _devices(
    settings: RunSettings, gpus: int | None, gpu_memory: float, nodes: int, host_memory: float | None
) -> Devices:
    """Return the machines that the options describe, or this one and `placement.nodes` like it."""
    from hone.config.placement import devices_of_run
    from hone.utils.devices import equal_devices, find_devices

    for option, gib in (("--gpu-memory", gpu_memory), ("--host-memory", host_memory)):
        if gib is not None and not 0 < gib < math.inf:
            raise UsageError(f"{option} is {gib:g}: pass the memory in GiB, above 0")

    if gpus is None:
        if nodes > 1 or host_memory is not None:
            raise UsageError("--nodes and --host-memory describe other machines: pass --gpus, too")
        return devices_of_run(settings, find_devices())
    if gpus == 0 and host_memory is None:
        raise UsageError("--gpus 0 describes machines without a GPU: pass their --host-memory, too")
    return equal_devices(gpus, gpu_memory, nodes=nodes, host_gib=host_memory)
