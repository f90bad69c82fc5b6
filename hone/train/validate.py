"""Validation inside a run: the resolve rate on held-out tasks, and the best checkpoint by it.

    version v = the weights after v training steps; version 0 are the start weights
    checkpoints/best -> step-<v - 1>, where version v resolves most of the validation tasks

The results are in `metrics.jsonl` as the series "validation", one record per version. A resumed run reads
them there: a version up to the one that it resumes from is not validated again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from hone.train.checkpoint import PREFIX
from hone.train.metrics import MetricsWriter, read_metrics
from hone.train.settings import ValidateSettings
from hone.utils.files import replace_file

KIND = "validation"  # of the records in metrics.jsonl
BEST = "best"  # link in the folder of checkpoints


class Validator:
    """Decides which versions are validated, records the results and keeps the best checkpoint."""

    def __init__(
        self,
        settings: ValidateSettings,
        *,
        steps: int,
        run_dir: Path,
        metrics: MetricsWriter,
        evaluate: Callable[[int], Awaitable[Mapping[str, float]]],
        on_result: Callable[[int, Mapping[str, float]], None] = lambda version, metrics: None,
    ) -> None:
        """`evaluate(version)` measures the weights that the engine samples from now.

        Its result has `resolve_rate`, `low` and `high` (of the 95 % interval) and `n`, the number of rollouts
        without infrastructure faults.
        """
        self._settings = settings
        self._steps = steps
        self._run_dir = run_dir
        self._metrics = metrics
        self._evaluate = evaluate
        self._on_result = on_result
        self._results: dict[int, Mapping[str, float]] = {}

    def resume(self, version: int) -> None:
        """Read the results of the versions up to `version`; later ones belong to weights that were lost."""
        records = read_metrics(self._run_dir, KIND)
        self._results = {record["step"]: record for record in records if record["step"] <= version}

    def is_due(self, version: int) -> bool:
        """Return whether `version` is to be validated and is not yet."""
        return version not in self._results and self._settings.is_due(version, self._steps)

    def needs_checkpoint(self, step: int) -> bool:
        """Return whether `step` must end with a checkpoint, because its weights may become the best."""
        return self._settings.keep_best and self.is_due(step + 1)

    async def validate(self, version: int) -> None:
        """Evaluate `version` and record the result."""
        started = time.monotonic()
        result = dict(await self._evaluate(version))
        result["seconds"] = time.monotonic() - started
        self._results[version] = result
        self._metrics.write(version, result, kind=KIND)
        self._on_result(version, result)

    def best_step(self, directory: Path) -> int | None:
        """Return the step of the best checkpoint in `directory`, the earliest of equals; None without one."""
        if not self._settings.keep_best:
            return None
        versions = [v for v in sorted(self._results) if v > 0 and self._results[v]["n"]]
        stored = [v for v in versions if _checkpoint(directory, v - 1).is_dir()]
        return max(stored, key=lambda v: self._results[v]["resolve_rate"]) - 1 if stored else None

    def protected(self, directory: Path) -> Collection[int]:
        """Return the steps whose checkpoints must be kept."""
        best = self.best_step(directory)
        return () if best is None else (best,)

    def link_best(self, directory: Path) -> None:
        """Make `best` in `directory` a link to the best checkpoint, which must be complete."""
        best, link = self.best_step(directory), directory / BEST
        if best is None:
            if link.is_symlink() and not link.exists():  # the run was rolled back behind it
                link.unlink()
            return
        target = _checkpoint(directory, best).name
        if not link.is_symlink() or link.readlink() != Path(target):
            with replace_file(link) as partial:
                partial.symlink_to(target)


def _checkpoint(directory: Path, step: int) -> Path:
    return directory / f"{PREFIX}{step:06d}"
