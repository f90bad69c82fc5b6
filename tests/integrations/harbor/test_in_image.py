"""Harbor tasks in the root file system of an image, whose user is root: the same gradings and attacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integrations.harbor.attacks import attacks, honest
from tests.integrations.harbor.folders import Files
from tests.integrations.harbor.test_grading import graded
from tests.services.image import unpack_base

pytestmark = [pytest.mark.sandbox, pytest.mark.full]
NAMES = ("program-under-test", "earlier-in-path", "linked-answer", "module-before-the-runner")


def in_image(tasks: Mapping[str, Files], root: Path) -> dict[str, Files]:
    image = f'docker_image = "rootfs:{root}"'
    return {
        name: {**files, "task.toml": files["task.toml"].replace('docker_image = "host"', image)}
        for name, files in tasks.items()
        if name in NAMES
    }


def test_attacks_earn_nothing_in_an_image_and_solutions_do(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpack_base(root)
    found = asyncio.run(graded(in_image(attacks(), root), tmp_path / "attacks"))
    assert {name: verdict.score for name, verdict in found.items()} == dict.fromkeys(NAMES, 0.0)
    solved = asyncio.run(graded(in_image(honest(), root), tmp_path / "honest"))
    assert {name: verdict.score for name, verdict in solved.items()} == dict.fromkeys(NAMES, 1.0)
