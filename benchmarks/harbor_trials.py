"""Seconds a trial of Harbor takes on Hone's sandboxes and on Harbor's own Docker environment.

    python benchmarks/harbor_trials.py --harbor-python PYTHON [--tasks 8] [--at-once 1]

`harbor run -a oracle` solves the same tasks, each with a Dockerfile over one base image of this machine: in
Harbor's Docker environment and in `HoneEnvironment`, both graded by Harbor's verifier, and in
`HoneEnvironment` graded by `HoneVerifier` in a sandbox of its own. Each runs twice: the first builds the
images, the second finds them built. A trial's seconds are those that Harbor recorded, from its start to its
end; `without_end` leaves out what is in none of its phases, above all the removal of the environment.

PYTHON has harbor 0.25 and Hone's dependencies. Needs root, dockerd with the plugin `docker compose` of
version 2, bubblewrap, buildah and runc. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sandbox import engine_of_our_own
from hone.sandbox.images import ImageStore
from hone.tasks.curriculum import generate
from hone.tasks.formats import FORMATS
from hone.tasks.formats.harbor import write_folders
from hone.tasks.settings import TasksSettings
from tests.services.image import base_archive

BASE = "hone-trials:latest"
DOCKERFILE = f"""FROM {BASE}
COPY tree/ /testbed/
WORKDIR /testbed
RUN git init -q && git add -A && git -c user.name=a -c user.email=a@localhost commit -q -m base
"""
PHASES = ("environment_setup", "agent_execution", "verifier")


def make_tasks(folder: Path, count: int) -> None:
    """Write curriculum tasks as folders of Harbor, each with a Dockerfile over BASE."""
    tasks = generate(TasksSettings(train=count, test=1, validation=1, unseen=1)).train
    write_folders(map(FORMATS["harbor"].write, tasks), folder)
    for task in folder.iterdir():
        (task / "environment" / "Dockerfile").write_text(DOCKERFILE)
        (task / "hone.json").unlink()  # Hone's own record is of the folder as it was
        config = (
            task / "task.toml"
        ).read_text()  # Docker's environment needs more images to take a network away
        (task / "task.toml").write_text(config.replace('"no-network"', '"public"'))


def run(options: argparse.Namespace, tasks: Path, out: Path, *environment: str) -> list[Mapping[str, Any]]:
    """Return the results of every trial. Raises RuntimeError unless all earned the reward."""
    harbor = options.harbor_python.with_name("harbor")
    command = [
        harbor,
        "run",
        "-p",
        tasks,
        "-a",
        "oracle",
        "-o",
        out,
        "-n",
        str(options.at_once),
        *environment,
    ]
    env = {
        **os.environ,
        "HARBOR_TELEMETRY": "0",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, check=False)
    results = [json.loads(path.read_text()) for path in out.glob("*/*/result.json")]
    rewards = [((result["verifier_result"] or {}).get("rewards") or {}).get("reward") for result in results]
    if done.returncode or rewards != [1.0] * options.tasks:
        raise RuntimeError(f"rewards {rewards}, exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return results


def seconds(record: Mapping[str, Any]) -> float:
    begun, ended = (datetime.fromisoformat(record[key]) for key in ("started_at", "finished_at"))
    return (ended - begun).total_seconds()


def medians(results: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median seconds of a trial and of its phases."""
    figures = {"trial": statistics.median(map(seconds, results))}
    for phase in PHASES:
        figures[phase] = statistics.median(seconds(result[phase]) for result in results)
    figures["without_end"] = statistics.median(
        sum(seconds(result[phase]) for phase in PHASES) for result in results
    )
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--harbor-python", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name, engine_of_our_own() as image:
        folder = Path(name)
        make_tasks(folder / "tasks", options.tasks)
        subprocess.run(["docker", "tag", image, BASE], check=True)
        store = ImageStore(folder / "cache" / "images", budget_gib=4)
        asyncio.run(store.import_(str(base_archive()), name=BASE))
        hone = ["-e", "hone.integrations.harbor:HoneEnvironment", "--ek", f"cache_dir={folder / 'cache'}"]
        environments = {
            "docker": ["-e", "docker"],
            "hone": hone,
            "hone_and_its_verifier": [*hone, "--verifier", "hone.integrations.harbor:HoneVerifier"],
        }
        for kind, environment in environments.items():
            for attempt in ("first", "again"):
                results = run(options, folder / "tasks", folder / f"{kind}-{attempt}", *environment)
                figures[f"{kind}, {attempt}"] = medians(results)
                print(f"{kind}, {attempt}: {figures[f'{kind}, {attempt}']}", flush=True)
    ratio = figures["docker, again"]["trial"] / figures["hone, again"]["trial"]
    print(
        json.dumps(
            {"tasks": options.tasks, "at_once": options.at_once, "seconds": figures, "ratio": round(ratio, 2)}
        )
    )


if __name__ == "__main__":
    main()
