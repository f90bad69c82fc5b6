"""`hone eval`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hone.cli.errors import FAILED
from hone.cli.evaluate_flags import Flags, replaced_settings, to_sets
from hone.cli.options import parameters_of, run_job

if TYPE_CHECKING:
    from hone.config import RunSettings
    from hone.launch.reporter import Reporter


@parameters_of(Flags)
def evaluate(flags: Flags) -> int:
    """Evaluate a fixed policy, or a scripted agent, on held-out tasks.

    Prints the resolve rate with its 95 % interval and writes report.html beside the results. Exit code 1 if
    infrastructure faults lost samples; the same command with --resume retries those.

    [bold]Example[/bold]: hone eval recipes/quickstart.toml --model runs/quickstart/final --json

    [bold]Example[/bold]: hone eval --agent oracle --tasks tasks.jsonl -o results --slice 0:5

    [bold]Example[/bold]: hone eval --agent bash --engine http://localhost:8000 --tasks tasks.jsonl -o results
    """

    from hone.cli.summary import print_evaluation

    def job(settings: RunSettings, reporter: Reporter) -> dict[str, Any]:
        from hone.launch.evaluate import evaluate as run

        return run(settings, reporter, out=flags.out, resume=flags.resume or flags.out is None)

    summary = run_job(
        "eval",
        flags.recipe,
        to_sets(flags),
        job,
        dry_run=flags.dry_run,
        allow_overlap=flags.allow_overlap,
        without=replaced_settings(flags),
    )
    if summary is None:
        return 0
    print_evaluation(summary, as_json=flags.as_json)
    return FAILED if any(each["errors"] for each in summary.get("evaluations", [summary])) else 0
