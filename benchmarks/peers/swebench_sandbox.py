"""The SWE-bench harness, edition 5, without Docker: its steps in a sandbox, its own grading of the log.

The commands that apply the patch, the evaluation script, the log parser and the report are the harness's. The
container is not: it is one of Hone's sandboxes, with their user and limits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.swebench_harness import MODEL
from hone.sandbox import SandboxSpec
from hone.sandbox.contract import Provider, SandboxLost
from hone.tasks.workspace import GIT_ENV

_PATCH, _SCRIPT = "/tmp/patch.diff", "/eval.sh"


async def evaluate(
    provider: Provider,
    workspace: Path,
    row: Mapping[str, Any],
    patch: str,
    *,
    env: Mapping[str, str],
    timeout_s: float,
) -> Mapping[str, Any] | None:
    """Return the entry of the harness's report.json, or None where it writes none.

    It writes none when the tests run out of time or end the sandbox; a patch that does not apply is
    unresolved.

    Args:
        workspace: the repository, on the host.
        row: of a data set of edition 5; its image is not used.
    """
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS  # an extra of the package
    from swebench.harness.utils import make_test_spec

    spec = SandboxSpec(layer=workspace, env={**GIT_ENV, **env})
    async with await provider.start(spec) as sandbox:
        try:
            await sandbox.write(_PATCH, patch.encode())
            for number, command in enumerate(GIT_APPLY_CMDS):
                if number:
                    await sandbox.exec("git checkout -- . ; git clean -fd")
                if (await sandbox.exec(f"{command} {_PATCH}")).exit_code == 0:
                    break
            else:
                return {"resolved": False, "infra_failure": False}
            await sandbox.write(_SCRIPT, make_test_spec(dict(row)).eval_script.encode())
            ran = await sandbox.exec(["bash", _SCRIPT], timeout_s=timeout_s, merge_stderr=True)
        except SandboxLost:
            return None
    return None if ran.timed_out else _report(row, patch, ran.text)


def _report(row: Mapping[str, Any], patch: str, log: str) -> Mapping[str, Any]:
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    prediction = {"instance_id": row["instance_id"], "model_name_or_path": MODEL, "model_patch": patch}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(log)
        file.flush()
        report = get_eval_report(make_test_spec(dict(row)), prediction, file.name, include_tests_status=True)
    return report[row["instance_id"]]
