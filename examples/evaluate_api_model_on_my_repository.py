"""Evaluate a model behind an API on tasks of your own repository.

    .venv/bin/hone tasks mine my-repository -o tasks.jsonl
    OPENAI_API_KEY=... .venv/bin/python examples/evaluate_api_model_on_my_repository.py \\
        tasks.jsonl https://api.openai.com/v1 MODEL

The first command turns fixes in the repository's history into tasks (docs/14-mining.md). The second runs the
bash agent on each with the model, in sandboxes without network, and grades the patches by hidden tests. It
prints the resolve rate with its 95 % interval, the tokens, and each task's outcome; the report is in
results/report.html. The same command continues where it stopped.
"""

import os
import sys

import hone


def main() -> None:
    tasks, address, model = sys.argv[1:4]
    settings = {"engine.api_key_env": "OPENAI_API_KEY"} if "OPENAI_API_KEY" in os.environ else {}
    result = hone.evaluate(tasks, "bash", engine=address, model=model, out="results", settings=settings)
    print(f"resolved {result.resolve_rate:.0%} of {result.n} ({result.low:.0%} to {result.high:.0%})")
    print(f"tokens: {result.summary['prompt_tokens']} in prompts, {result.summary['tokens']} in replies")
    for row in hone.read_run(result.out).rollouts.to_pylist():
        print(f"{row['task_id']}: {row['outcome']}, {row['turns']} turns, {row['seconds']:.0f} s")


if __name__ == "__main__":
    main()
