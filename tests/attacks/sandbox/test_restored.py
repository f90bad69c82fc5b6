"""A snapshot gives its sandbox nothing that the first sandbox did not have, whatever its files are for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hone.sandbox import IncompleteSnapshot, Limits, Sandbox, SandboxError, SandboxSpec
from tests.attacks.sandbox.attack_target import AttackTarget

# Attributes by which a layer tells overlayfs what to show; a snapshot is a layer.
_FORGE = """
import os
names = ("opaque", "whiteout", "redirect", "metacopy", "origin", "impure", "protattr")
os.makedirs("forged/etc", exist_ok=True)
for name in names:
    for path in ("forged", "forged/etc"):
        try:
            os.setxattr(path, f"user.overlay.{name}", b"/secret" if name == "redirect" else b"y")
        except OSError:
            pass
try:
    os.mknod("forged/null", 0o20666, os.makedev(1, 3))
except PermissionError:
    pass
try:
    os.mknod("forged/whiteout", 0o20000, 0)
except PermissionError:
    pass
"""


def _layer(tmp_path: Path) -> Path:
    """The initial content of workdir, of which a preparation removes `secret` and `hint`."""
    layer = tmp_path / "layer"
    (layer / "forged/etc").mkdir(parents=True)
    (layer / "secret").mkdir()
    (layer / "secret/fix").write_text("the fix")
    (layer / "hint").write_text("a hint")
    (layer / "forged/etc/kept").write_text("kept")
    return layer


async def _restored(attacked: AttackTarget, sandbox: Sandbox, target: Path) -> Sandbox:
    await sandbox.snapshot(target)
    return await attacked.provider.start(dataclasses.replace(sandbox.spec, snapshot=target))


@pytest.fixture
def layered(attacked: AttackTarget, tmp_path: Path) -> SandboxSpec:
    return SandboxSpec(image=attacked.spec.image, layer=_layer(tmp_path))


def test_removed_files_stay_removed_whatever_marks_the_agent_writes(
    attacked: AttackTarget, layered: SandboxSpec, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with await attacked.provider.start(layered) as fresh:
            assert (
                await fresh.exec("cat secret/fix hint")
            ).text == "the fixa hint"  # the control: the layer has it
        async with await attacked.provider.start(layered) as sandbox:
            await sandbox.exec("rm -r hint secret && mkdir secret")  # as the preparation of a task does
            await sandbox.exec(["python3", "-c", _FORGE])
            async with await _restored(attacked, sandbox, tmp_path / "snapshot") as restored:
                seen = await restored.exec(
                    "find . -name fix -o -name hint; cat forged/etc/kept; ls forged; rmdir secret; ls secret"
                )
                assert seen.text == "keptetc\n"
                assert seen.exit_code != 0

    attacked.runner.run(scenario())


def test_attributes_of_a_layer_do_not_reach_a_whole_snapshot(
    attacked: AttackTarget, layered: SandboxSpec, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with await attacked.provider.start(layered) as sandbox:
            await sandbox.exec("mkdir honest; echo a > honest/a")
            await sandbox.snapshot(tmp_path / "honest", whole=True)  # the control
            forged = await sandbox.exec(
                ["python3", "-c", 'import os; os.setxattr("honest/a", "user.overlay.whiteout", b"y")']
            )
            if forged.exit_code != 0:
                pytest.skip("this kernel's overlayfs refuses the attribute")
            with pytest.raises(IncompleteSnapshot, match="extended attribute"):
                await sandbox.snapshot(tmp_path / "forged", whole=True)
            async with await _restored(attacked, sandbox, tmp_path / "forged") as restored:
                assert (await restored.exec("cat honest/a")).text == "a\n"

    attacked.runner.run(scenario())


def test_restored_sandbox_has_no_more_room_than_the_first(attacked: AttackTarget, tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = SandboxSpec(image=attacked.spec.image, limits=Limits(disk_mib=32))
        sandbox = await attacked.provider.start(spec)
        for number in range(3):
            assert (await sandbox.exec(f"head -c 5M /dev/zero > part{number}")).exit_code == 0  # the control
            restored = await _restored(attacked, sandbox, tmp_path / str(number))
            await sandbox.close()
            sandbox = restored
        full = await sandbox.exec("head -c 20M /dev/zero > rest; cat part* rest | wc -c")
        assert b"No space left" in full.stderr
        assert 15 << 20 < int(full.text) <= 32 << 20
        await sandbox.close()

    attacked.runner.run(scenario())


def test_links_of_a_snapshot_lead_to_no_file_of_the_host(
    attacked: AttackTarget, secret: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with await attacked.provider.start(attacked.spec) as sandbox:
            (tmp_path / "target").mkdir()
            await sandbox.exec(
                f"ln -s {secret} link; ln -s {tmp_path}/target out; ln -s kept honest; echo kept > kept"
            )
            async with await _restored(attacked, sandbox, tmp_path / "snapshot") as restored:
                assert (await restored.exec("cat honest")).text == "kept\n"  # the control
                seen = await restored.exec("cat link; echo x > out/x")
                assert (seen.stdout, seen.exit_code != 0) == (b"", True)
        assert list((tmp_path / "target").iterdir()) == []
        assert not any(path.is_symlink() for path in (tmp_path / "snapshot").rglob("*"))

    attacked.runner.run(scenario())


def test_mount_moved_before_a_snapshot_cannot_fail_its_sandbox(
    attacked: AttackTarget, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with await attacked.provider.start(attacked.spec) as sandbox:
            await sandbox.snapshot(tmp_path / "honest", whole=True)  # the control
            moved = await sandbox.exec("mv /sys/devices /sys/moved && ln -s /dev /sys/devices")
            assert moved.exit_code == 0
            with pytest.raises(IncompleteSnapshot, match="a mount that was moved"):
                await sandbox.snapshot(tmp_path / "moved", whole=True)

    attacked.runner.run(scenario())


def test_tree_that_would_take_long_to_restore_is_refused(attacked: AttackTarget, tmp_path: Path) -> None:
    async def scenario() -> None:
        spec = SandboxSpec(image=attacked.spec.image, limits=Limits(disk_mib=256))
        async with await attacked.provider.start(spec) as sandbox:
            many = "import os\nos.mkdir('d')\nfor n in range({}): os.symlink('x' * 100, f'd/{{n}}')"
            assert (await sandbox.exec(["python3", "-c", many.format(2000)])).exit_code == 0
            await sandbox.snapshot(tmp_path / "honest", whole=True)  # the control
            await sandbox.exec("rm -r d")
            assert (await sandbox.exec(["python3", "-c", many.format(20_001)])).exit_code == 0
            with pytest.raises(SandboxError, match="too many files"):
                await sandbox.snapshot(tmp_path / "many", whole=True)

    attacked.runner.run(scenario())
