"""Seconds until a browser shows 10,000 rollouts, and a rollout of 200 turns and 100,000 tokens.

    python benchmarks/view.py [--chromium PATH] [--rollouts 10000] [--turns 200] [--tokens 100000]

Makes a run with the real ledger and store, serves it with `hone view`, and opens each page `--repeat` times
in a fresh Chromium, which Playwright drives. A page counts as open when its rows, turns or coloured tokens
are in the document and the browser has drawn a frame with them. The first opening, with nothing in memory,
is reported too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
import urllib.parse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.store import Store
from hone.types import Node, TestStatus, TokenTree, Trajectory, Turn, Verdict
from tests.view.browser import FLAGS, hone_view

GROUP, GROUPS_PER_STEP, VOCABULARY = 8, 12, 50_000
OUTCOMES = (Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.NO_PATCH, Outcome.TURN_LIMIT)
SHOWN = """selector => new Promise(done => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : setTimeout(look, 5);
    look();
})"""


def long_rollout(turns: int, tokens: int) -> Trajectory:
    """Return a rollout of `tokens` tokens in all, a fifth of them sampled."""
    random = np.random.default_rng(0)
    per_turn = tokens // turns
    sampled = per_turn // 5
    nodes: list[Node] = []
    made: list[Turn] = []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the bug in the parser. " * 40}]
    for index in range(turns):
        parent = len(nodes) - 1 if nodes else None
        ids = random.integers(0, VOCABULARY, per_turn, dtype=np.int32)
        empty, none = np.empty(0, np.float32), np.empty(0, np.int32)
        nodes.append(
            Node(parent=parent, tokens=ids[sampled:], sampled=False, logprobs=empty, version=none, turn=index)
        )
        logprobs = -random.exponential(0.4, sampled).astype(np.float32)
        version = np.full(sampled, index // 50, np.int32)
        nodes.append(
            Node(
                parent=len(nodes) - 1,
                tokens=ids[:sampled],
                sampled=True,
                logprobs=logprobs,
                version=version,
                turn=index,
            )
        )
        action = f"sed -n '{index},{index + 40}p' src/parser.py"
        output = "\n".join(f"{line}: def parse_{line}(text): return text.strip()" for line in range(30))
        reply = f"I read part {index} of the parser.\n```bash\n{action}\n```"
        made.append(
            Turn(
                index=index,
                node=len(nodes) - 1,
                reply=reply,
                action=action,
                exit_code=0,
                observation=output,
                seconds=0.5,
            )
        )
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": output}]
    tests = {f"tests/test_parser.py::test_{i}": TestStatus.FAILED for i in range(40)}
    patch = "--- a/src/parser.py\n+++ b/src/parser.py\n@@ -1 +1 @@\n-a\n+b\n"
    return Trajectory(
        task_id="owner__project-1",
        rollout_id="long",
        group_id="long",
        tree=TokenTree(nodes),
        turns=tuple(made),
        messages=tuple(messages),
        patch=patch,
        outcome=Outcome.UNRESOLVED,
        reward=-1.0,
        verdict=Verdict(
            resolved=False, tests=tests, score=0.0, log="E   AssertionError: assert 1 == 2\n" * 200
        ),
        started_at=time.time(),
    )


def make_run(run: Path, rollouts: int, turns: int, tokens: int) -> str:
    """Make a run; return the directory of its long rollout. The others share the files of a short one."""
    run.mkdir()
    store = Store(run / "rollouts")
    long = store.save(long_rollout(turns, tokens), group=0, index=0)
    short = run / "rollouts" / store.save(long_rollout(4, 400), group=0, index=1)
    (run / "start").mkdir()
    pieces = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = {"pre_tokenizer": {"type": "ByteLevel"}, "model": {"vocab": pieces}}
    (run / "start" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Ledger.open(run) as ledger:
        for index in range(rollouts):
            group, member = divmod(index, GROUP)
            rollout_id, step = f"g{group}-{member}", group // GROUPS_PER_STEP
            ledger.dispatch(
                rollout_id,
                group_id=f"g{group}",
                index=member,
                position=group,
                task_id=f"owner__project-{group}",
                sampled_version=step,
            )
            directory = long if index == rollouts - 1 else link_files(short, run / "rollouts", index)
            outcome = OUTCOMES[index * index % 7 % 4]
            ledger.end(rollout_id, outcome, reward=OUTCOME_RULES[outcome].reward, directory=directory)
        per_step = GROUP * GROUPS_PER_STEP
        for step in range(rollouts // per_step):
            ids = (divmod(index, GROUP) for index in range(step * per_step, (step + 1) * per_step))
            ledger.commit_step(step, {f"g{group}-{member}": TRAINED for group, member in ids})
    return long


def link_files(source: Path, folder: Path, index: int) -> str:
    name = f"owner__project-{index}__g0__i0__{index}"
    (folder / name).mkdir()
    for file in source.iterdir():
        os.link(file, folder / name / file.name)
    return name


def open_pages(server: str, pages: dict[str, tuple[str, str]], chromium: str, repeat: int) -> dict[str, Any]:
    """Return, by page, the seconds from navigation to content: of the first opening, median and largest."""
    figures: dict[str, Any] = {}
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=FLAGS, viewport={"width": 1440, "height": 900}
        )
        for name, (path, selector) in pages.items():
            page = context.new_page()
            seconds: list[float] = []
            for _ in range(repeat + 1):
                page.goto(server + path, wait_until="commit")
                seconds.append(page.evaluate(SHOWN, selector) / 1000)
            figures[f"{name}_first_s"] = round(seconds[0], 3)
            figures[f"{name}_median_s"] = round(statistics.median(seconds[1:]), 3)
            figures[f"{name}_largest_s"] = round(max(seconds[1:]), 3)
            page.close()
            print(f"{name}: {seconds}", file=sys.stderr)
        context.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="default: chromium on PATH")
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("there is no chromium on PATH: name a browser with --chromium")
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        long = urllib.parse.quote(make_run(run, options.rollouts, options.turns, options.tokens), safe="")
        last = options.turns - 1
        pages = {
            "table": ("/runs/run/rollouts", "tbody tr:last-child"),
            "table_sorted": (
                "/runs/run/rollouts?outcome=unresolved&sort=-sampled_tokens",
                "tbody tr:last-child",
            ),
            "rollout": (f"/runs/run/rollouts/{long}", f"#turn-{last}"),
            "tokens": (f"/runs/run/rollouts/{long}/tokens", "#nodes[data-ready] .node.sampled .t"),
        }
        with hone_view(run) as server:
            figures = open_pages(server, pages, options.chromium, options.repeat)
    load = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps({"rollouts": options.rollouts, "tokens": options.tokens, **figures, "load": load}))


if __name__ == "__main__":
    main()
