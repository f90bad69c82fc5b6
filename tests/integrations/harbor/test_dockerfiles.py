"""Harbor tasks that have only a Dockerfile: validated, graded and faulted as those with an image."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.images import ImageStore
from hone.sandbox.settings import SandboxSettings
from hone.tasks.files import write_rows
from hone.tasks.formats import FORMATS
from hone.types import Task, Verdict
from tests.cli.in_process import hone
from tests.integrations.harbor.folders import Files, folder, shell_test
from tests.sandbox.images.dockerfiles import BASE
from tests.services.image import base_archive
from tests.services.process import require

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(600)]

DOCKERFILE = f"""FROM {BASE}
WORKDIR /app
COPY start.txt tool.sh ./
RUN ./tool.sh > made.txt
"""


def dockerfile_folder(dockerfile: str = DOCKERFILE, name: str = "built") -> Files:
    """Return the packed files of a task whose solution needs a file that only the build makes."""
    files = dict(
        folder(
            name,
            ask="Copy made.txt to answer.txt.",
            test=shell_test("grep -qx tool /app/answer.txt"),
            solution="cp made.txt answer.txt",
            files={"environment/Dockerfile": dockerfile, "environment/tool.sh": "#!/bin/sh\necho tool\n"},
        )
    )
    config = files["task.toml"].replace('docker_image = "host"\nworkdir = "/app"\n', "")
    return {**files, "task.toml": config}


def dockerfile_task(dockerfile: str = DOCKERFILE, name: str = "built") -> Task:
    return FORMATS["harbor"].read({"name": name, "folder": dict(dockerfile_folder(dockerfile, name))})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("buildah", "runc")
    cache = tmp_path_factory.mktemp("cache")
    asyncio.run(ImageStore(cache / "images", budget_gib=4).import_(str(base_archive()), name=BASE))
    return cache


def write(file: Path, *tasks: Task) -> None:
    write_rows([FORMATS["harbor"].write(task) for task in tasks], file)


def graded(task: Task, patch: str, cache: Path) -> Verdict:
    async def run() -> Verdict:
        async with make_provider(SandboxSettings(cache_dir=cache)) as provider:
            return await Grader(provider, GradingSettings(), cache=cache / "workspaces").grade(task, patch)

    return asyncio.run(run())


@pytest.mark.full
def test_task_with_a_dockerfile_is_validated(cache: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "tasks.jsonl", tmp_path / "admitted.jsonl"
    write(file, dockerfile_task())
    settings = ["--set", f"sandbox.cache_dir={cache}"]
    built = hone("images", "build", file, *settings)
    assert (built.returncode, built.stdout) == (0, "1 of 1 Dockerfiles are built.\n"), built.stderr
    done = hone("tasks", "validate", file, "--repeat", 1, "-o", out, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 tasks admitted: gold 1 of 1, empty 0 of 1." in done.stdout
    assert len(out.read_text().splitlines()) == 1


def test_patch_is_graded_in_the_built_image(cache: Path) -> None:
    patch = "--- /dev/null\n+++ b/app/answer.txt\n@@ -0,0 +1 @@\n+tool\n"
    assert graded(dockerfile_task(), patch, cache).score == 1.0
    assert graded(dockerfile_task(), "", cache).score == 0.0


@pytest.mark.full
def test_dockerfile_that_fails_is_a_fault_and_no_reward(cache: Path, tmp_path: Path) -> None:
    broken = dockerfile_task(f"{DOCKERFILE}RUN echo reason; exit 3\n", "broken")
    with pytest.raises(GraderError) as raised:
        graded(broken, "", cache)
    message = str(raised.value)
    assert "the step `RUN echo reason; exit 3` fails" in message
    assert message.endswith(": reason")
    assert "\n" not in message
    file = tmp_path / "tasks.jsonl"
    write(file, broken, dockerfile_task())
    done = hone("images", "build", file, "--set", f"sandbox.cache_dir={cache}")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("hone__broken: the image cannot be built")
    assert done.stdout.splitlines()[-1] == "1 of 2 Dockerfiles are built."


@pytest.mark.full
def test_task_with_a_failing_dockerfile_is_refused(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    write(file, dockerfile_task(f"{DOCKERFILE}RUN false\n", "broken"))
    done = hone("tasks", "validate", file, "--repeat", 1, "--json", "--set", f"sandbox.cache_dir={cache}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the step `RUN false` fails" in json.loads(done.stdout)["refused"]["hone__broken"]
