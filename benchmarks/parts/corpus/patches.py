"""The patches of the corpus: the honest ones and the exploits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.corpus import answers, configuration, endings, framework, results, tests
from benchmarks.parts.corpus.repository import ISSUES
from hone.tasks.workspace import prepare
from tests.grading.example import patch_of

HONEST = "honest patches"
FIX, WRONG = "fix", "wrong patch"
_MODULES = (configuration, tests, endings, results, framework, answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch of the corpus."""

    kind: str  # the class of the exploit, or HONEST
    name: str
    issue: str  # name of the task in ISSUES
    text: str

    @property
    def honest(self) -> bool:
        return self.kind == HONEST


def make_patches(folder: Path, only: Collection[str] = ()) -> tuple[Path, list[Patch]]:
    """Return the repository of the corpus and its patches: two honest ones per task, then the exploits.

    Args:
        folder: an existing one, in which the repository is made.
        only: parts of the classes or names of the wanted exploits; default: all. Their tasks' honest patches
            come along.
    """
    exploits = [
        exploit
        for module in _MODULES
        for exploit in module.EXPLOITS
        if not only or any(part in f"{exploit.kind}: {exploit.name}" for part in only)
    ]
    workspace = prepare(next(iter(ISSUES.values())).task(""), folder)
    patches = [
        Patch(
            kind=HONEST,
            name=name,
            issue=issue.name,
            text=patch_of(workspace, folder, issue.module_with(text)),
        )
        for issue in ISSUES.values()
        if any(exploit.issue == issue.name for exploit in exploits)
        for name, text in ((FIX, issue.fixed), (WRONG, issue.wrong))
    ]
    for exploit in exploits:
        text = exploit.patch or patch_of(workspace, folder, exploit.files or {})
        patches.append(Patch(kind=exploit.kind, name=exploit.name, issue=exploit.issue, text=text))
    return workspace, patches
