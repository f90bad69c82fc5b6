"""The agent's tree becomes a patch, whatever the agent did to git."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from hone.environment import BrokenTree, EnvironmentSettings, base_mounts, extract_patch, filter_patch
from hone.sandbox import ExecResult, Limits, Provider, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from tests.grading.example import git, make_task

pytestmark = pytest.mark.sandbox

EDIT = "sed -i 's/a - b/a + b/' stats.py && "
COMMIT = "git -c user.name=x -c user.email=x commit -q"
SABOTAGE = {
    "commits": f"{COMMIT} -am done",
    "commits and rewrites history": f"{COMMIT} -a --amend -m x && git gc -q",
    "no .git": "rm -rf .git",
    "a new .git": f"rm -rf .git && git init -q && {COMMIT} -m x --allow-empty",
    "a broken .git": "rm -rf .git && echo 'gitdir: /nowhere' > .git",
    "hooks": """mkdir -p .git/hooks && for hook in post-index-change pre-commit; do
        printf '#!/bin/sh\nrm -f stats.py\n' > .git/hooks/$hook && chmod +x .git/hooks/$hook; done""",
    "filters": """mkdir -p .git/info && git config filter.x.clean 'echo gone' &&
        echo '* filter=x' > .git/info/attributes""",
    "attributes": "mkdir -p .git/info && echo '* -diff' > .git/info/attributes",
    "configuration": """git config --global core.fsmonitor false; git config core.fsmonitor /bin/false &&
        git config diff.external false && git config core.bare true""",
    "a flagged index": "git update-index --assume-unchanged --skip-worktree stats.py",
    "a locked index": "touch .git/index.lock",
    "an exclude file": """mkdir -p .git/info && echo stats.py > .git/info/exclude &&
        git rm -q --cached stats.py""",
    "a fifo": "mkfifo pipe",
}
CHANGES = {
    "a new file": "mkdir -p new/deep && echo hello > new/deep/file.txt",
    "a deleted file": "rm data.txt",
    "a renamed file": "git mv data.txt moved.txt",
    "a binary file": "head -c 3000 /dev/urandom > blob.bin",
    "a mode": "chmod +x stats.py",
    "a link": "ln -s stats.py link.py",
    "a file that becomes a directory": "rm data.txt && mkdir data.txt && echo x > data.txt/x",
    "carriage returns": "sed -i 's/$/\\r/' data.txt && printf 'a\\r\\nb\\rc' > odd.txt",
    "Latin-1": "printf 'caf\\351\\n' > latin.txt && printf '\\377\\n' >> data.txt",
    "odd names": "echo 1 > 'a b' && echo 2 > 'q\"uote' && echo 3 > $'t\\tab' && echo 4 > 'é' && echo 5 > -x",
    "attributes of its own": "echo '* text eol=crlf' > .gitattributes && printf 'a\\r\\nb\\n' > data.txt",
    "no newline at the end": "printf end > data.txt",
    "a large text": "seq 1 90000 > numbers.txt",
    "a nested repository": "mkdir sub && cd sub && git init -q && echo x > file.txt",
    "nothing": "true",
    "only caches": "python3 -c 'import stats' && mkdir .pytest_cache && touch .pytest_cache/x",
}
CACHES = ("__pycache__", ".pytest_cache")


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Path -> (executable or link, content) of everything but git's own and caches."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if ".git" in parts or any(cache in parts for cache in CACHES):
            continue
        if path.is_symlink():
            found["/".join(parts)] = (2, str(path.readlink()).encode())
        elif path.is_file():
            found["/".join(parts)] = (path.stat().st_mode & 1, path.read_bytes())
    return found


async def _run(
    provider: Provider, workspace: Path, command: str, tree: Path | None = None
) -> tuple[ExecResult, str]:
    spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace), limits=Limits(output_kib=64))
    async with await provider.start(spec) as sandbox:
        result = await sandbox.exec(command)
        if tree is not None:
            await sandbox.download("/testbed", tree)
        return result, await extract_patch(sandbox, make_task())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(make_task(), tmp_path_factory.mktemp("workspaces"))


@pytest.mark.full
def test_damaged_git_hides_no_edit(workspace: Path) -> None:
    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            _, plain = await _run(provider, workspace, EDIT + "true")
            assert "+    return a + b" in plain
            for name, command in SABOTAGE.items():
                result, patch = await _run(provider, workspace, EDIT + command)
                assert result.exit_code == 0, (name, result.text, result.stderr)
                assert patch == plain, name

    asyncio.run(scenario())


def test_patch_turns_the_base_into_the_agents_tree(workspace: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            for i, (name, command) in enumerate(CHANGES.items()):
                left, rebuilt = tmp_path / f"left{i}", tmp_path / f"rebuilt{i}"
                result, patch = await _run(provider, workspace, command, left)
                assert result.exit_code == 0, (name, result.text, result.stderr)
                patch.encode()  # valid Unicode, whatever the files hold
                shutil.copytree(workspace, rebuilt, symlinks=True)
                if patch:
                    (tmp_path / "patch.diff").write_bytes(patch.encode())
                    git(rebuilt, "apply", "--whitespace=nowarn", str(tmp_path / "patch.diff"))
                assert _files(rebuilt) == _files(left), name
                assert (patch == "") == (name in ("nothing", "only caches")), name
                if name != "attributes of its own":
                    assert filter_patch(patch, []).text == patch, name

    asyncio.run(scenario())


def test_unreadable_tree_is_the_policys_failure(workspace: Path) -> None:
    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace))
            async with await provider.start(spec) as sandbox:
                await sandbox.exec("head -c 3000000 /dev/urandom > big.bin")
                with pytest.raises(BrokenTree, match="larger than 1024 KiB"):
                    await extract_patch(sandbox, make_task())
                with pytest.raises(BrokenTree, match="did not read"):
                    await extract_patch(sandbox, make_task(), EnvironmentSettings(extract_timeout_s=0.001))

    asyncio.run(scenario())


def test_sandbox_without_base_mount_is_an_error(workspace: Path) -> None:
    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            sandbox = await provider.start(SandboxSpec(layer=workspace))
            with pytest.raises(RuntimeError, match="base_mounts"):
                await extract_patch(sandbox, make_task())

    asyncio.run(scenario())


_LISTING = r"""cd /testbed && find . -printf '%p %y %m %s %T@ %i %l\n' | sort; ls -a / /tmp
find . -type f -exec sha256sum {} + | sort"""


FEW = ("a new file", "a renamed file", "a link", "odd names", "a nested repository", "nothing",
       "commits and rewrites history", "no .git", "filters", "a locked index", "a fifo")  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [pytest.param(FEW, id="few"), pytest.param((*CHANGES, *SABOTAGE), id="all", marks=pytest.mark.full)],
)
def test_intact_extraction_changes_nothing(names: tuple[str, ...], workspace: Path) -> None:
    commands = {**CHANGES, **SABOTAGE}
    chosen = {name: commands[name] for name in names}

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            for name, command in {**chosen, "no tree": "cd / && rm -rf /testbed"}.items():
                spec = SandboxSpec(
                    layer=workspace, mounts=base_mounts(workspace), limits=Limits(output_kib=64)
                )
                async with await provider.start(spec) as sandbox:
                    await sandbox.exec(EDIT + command)
                    before = await sandbox.exec(_LISTING, cwd="/")
                    patch = await extract_patch(sandbox, make_task(), intact=True)
                    after = await sandbox.exec(_LISTING, cwd="/")
                    assert after.text == before.text, name
                    assert patch == await extract_patch(sandbox, make_task()), name

    asyncio.run(scenario())
