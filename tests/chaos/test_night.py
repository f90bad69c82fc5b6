"""A night in miniature: many rollouts at once, and everything goes wrong now and then."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hone.agents.blackbox import load_program
from hone.outcomes import OUTCOME_RULES, Fault
from hone.policy.engine import Completion, EngineError, Sampling
from hone.policy.gateway import SessionLimits
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.store import Store
from hone.train.samples import tree_samples
from tests.agents.blackbox.world import ScriptedEngine, call, open_world
from tests.chaos.leftovers import processes
from tests.grading.example import make_task
from tests.rollout.collecting import Collector

pytestmark = [pytest.mark.sandbox, pytest.mark.full]
GROUPS, SIZE, AT_ONCE = 25, 8, 32
DEADLINE_S, REPLY_S = 15.0, 3.0
# What a rollout may take beyond its deadline: its sandbox and its grading, where 32 are under way.
BESIDE_S = 120.0

PROGRAM = """
name = "night"
wire = "openai"
[install]
kind = "directory"
source = "tools"
[run]
command = ["python3", "{{ layer }}/app/night_client.py", "{{ prompt }}"]
prompt = "{{ problem }}"
env = { URL = "{{ base_url }}", KEY = "{{ key }}" }
[[exits]]
ending = "submitted"
code = 0
"""

LOOK = call("bash", command="cat stats.py")
FIX = call("bash", command="sed -i 's/a - b/a + b/' stats.py")
SPOIL = call("bash", command="echo broken >> stats.py")
TALK = call("bash", command="yes a long observation | head -c 40000")
REPLIES = [LOOK] * 4 + [FIX] * 4 + [SPOIL, TALK, "Done.", "Done.", "Done.", '<tool_call>\n{"name": oops']


class BadNight(ScriptedEngine):
    """Replies, fails, is slow or hangs, by a draw for each call of each session: the same in every run."""

    def __init__(self) -> None:
        super().__init__(lambda number, prompt: self._reply, context_tokens=4000, version=0)
        self._reply = ""
        self._calls: Counter[str] = Counter()

    async def generate(self, prompt_ids: object, sampling: Sampling, *, session: str) -> Completion:
        self._calls[session] += 1
        draw = random.Random(f"{session} {self._calls[session]}")
        luck = draw.random()
        if luck < 0.03:
            raise EngineError("an engine fell over")
        if luck < 0.04:
            await asyncio.sleep(10 * REPLY_S)
        elif luck < 0.3:
            await asyncio.sleep(luck)
        self._reply = draw.choice(REPLIES)
        return await super().generate(prompt_ids, sampling, session=session)


def test_every_rollout_of_a_bad_night_is_accounted_for(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(Path(__file__).with_name("night_client.py"), tmp_path / "tools")
    (tmp_path / "night.toml").write_text(PROGRAM)
    engine = BadNight()
    task = make_task()
    tasks = [replace(task, id=f"{task.id}-{number}") for number in range(GROUPS)]

    async def night(ledger: Ledger, store: Store) -> None:
        async with open_world(
            tmp_path,
            load_program(str(tmp_path / "night.toml")),
            engine,
            limits=SessionLimits(calls=12, seconds=DEADLINE_S),
            layers=tmp_path / "layers",
            group_size=SIZE,
            concurrent_episodes=AT_ONCE,
            attempts=20,
            retry_delay_s=0.0,
            time_limit_s=DEADLINE_S,
            reply_timeout_s=REPLY_S,
        ) as world:
            groups = await Collector(world.context, ledger, store, seed=1).collect(0, tasks)
            assert world.gateway.sessions == []
        assert [len(group.trajectories) for group in groups] == [SIZE] * GROUPS
        for trajectory in (t for group in groups for t in group.trajectories):
            assert OUTCOME_RULES[trajectory.outcome].fault is not Fault.INFRASTRUCTURE
            sampled = [node for node in trajectory.tree.nodes if node.sampled]
            said = engine.completions.get(trajectory.rollout_id, [])
            assert [node.tokens.tolist() for node in sampled] == [c.token_ids.tolist() for c in said]
            samples = tree_samples(trajectory.tree, rollout_id="r", group_id="g", advantage=1.0)
            assert sum(int((s.weight > 0).sum()) for s in samples) == sum(len(n.tokens) for n in sampled)
        kept = {t.rollout_id: TRAINED for group in groups for t in group.trajectories}
        assert len(kept) == GROUPS * SIZE
        ledger.commit_step(0, kept)

    with Ledger.open(tmp_path / "run") as ledger:
        asyncio.run(night(ledger, Store(tmp_path / "run" / "rollouts")))
        balance = ledger.balance()
        entries = ledger.entries()
    assert balance.in_flight == 0
    assert balance.trained == GROUPS * SIZE
    assert balance.dispatched == len(entries) == balance.trained + sum(balance.dropped.values())
    assert balance.dropped, "a night on which nothing fell over tests nothing"
    late = [e for e in entries if (e.ended_at or 0.0) - e.dispatched_at > DEADLINE_S + BESIDE_S]
    assert late == []
    outcomes = Counter(str(entry.outcome) for entry in entries)
    assert {"engine_error", "resolved", "context_limit", "time_limit"} <= set(outcomes), outcomes
    assert processes("night_client.py") == []
    assert processes(str(tmp_path)) == []
