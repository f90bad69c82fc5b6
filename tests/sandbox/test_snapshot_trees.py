"""Any tree of files is the same in a sandbox from its whole snapshot, and commands do the same to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.test_snapshots import survey

pytestmark = pytest.mark.sandbox

# Applies operations, and prints how each ended; a path may be of the layer, made before, or missing.
_APPLY = """
import json, os, shutil, sys
def write(path, size):
    with open(path, "ab") as file:
        file.write(b"x" * size)
def hole(path, size):
    with open(path, "ab") as file:
        file.truncate(file.tell() + size * 4096)
acts = {"write": write, "hole": hole, "mkdir": os.mkdir, "unlink": os.unlink, "rmtree": shutil.rmtree,
        "rename": os.rename, "link": os.link, "symlink": os.symlink, "chmod": os.chmod}
for name, *arguments in json.loads(sys.argv[1]):
    try:
        acts[name](*arguments)
        print(name, "done")
    except OSError as error:
        print(name, error.errno)
"""
_NAMES = st.sampled_from(["a", "b", "layer", "layer/file", "layer/deep", "layer/deep/file", "/tmp/c", "a/d"])
_OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["write", "hole"]), _NAMES, st.integers(0, 9000)),
    st.tuples(st.sampled_from(["mkdir", "unlink", "rmtree"]), _NAMES),
    st.tuples(st.sampled_from(["rename", "link", "symlink"]), _NAMES, _NAMES),
    st.tuples(st.just("chmod"), _NAMES, st.sampled_from([0, 0o644, 0o755, 0o1777])),
)


async def _apply(sandbox: Sandbox, operations: list[tuple[object, ...]]) -> str:
    return (await sandbox.exec(["python3", "-c", _APPLY, json.dumps(operations)])).text


async def _compare(
    folder: Path, rounds: list[tuple[list[tuple[object, ...]], list[tuple[object, ...]]]]
) -> None:
    layer = folder / "files"
    (layer / "layer/deep").mkdir(parents=True, exist_ok=True)
    for name in ("layer/file", "layer/deep/file"):
        (layer / name).write_text(name)
    own = SandboxSettings(state_dir=folder / "state", cache_dir=folder / "cache")
    async with make_provider(own) as provider:
        for number, (before, after) in enumerate(rounds):
            target = folder / f"snapshot-{number}"
            async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
                await _apply(sandbox, before)
                await sandbox.snapshot(target, whole=True)
                async with await provider.start(replace(sandbox.spec, snapshot=target)) as restored:
                    assert await survey(restored) == await survey(sandbox)
                    assert await _apply(restored, after) == await _apply(sandbox, after)


@settings(max_examples=max(2, settings.default.max_examples // 25))
@given(
    rounds=st.lists(
        st.tuples(st.lists(_OPERATIONS, max_size=12), st.lists(_OPERATIONS, max_size=6)),
        min_size=3,
        max_size=3,
    )
)
def test_tree_and_later_commands_are_the_same_after_a_snapshot(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[tuple[list[tuple[object, ...]], list[tuple[object, ...]]]],
) -> None:
    asyncio.run(_compare(tmp_path_factory.mktemp("trees"), rounds))
