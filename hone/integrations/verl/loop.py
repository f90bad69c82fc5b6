"""The agent loop of verl 0.9.1, in the processes of its workers.

verl finds it by the YAML that `hone verl` writes. It must not be registered by a decorator as well: that
would replace the entry of the YAML and lose its arguments.
"""

# verl is not installed where Hone is developed
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from hone.integrations.rollouts.process import shared_service
from hone.integrations.rollouts.service import RolloutService
from hone.integrations.verl.groups import Groups
from hone.integrations.verl.rows import completion_of, loop_outputs, sampling_of, sampling_params
from hone.policy.engine import Completion, Sampling
from hone.rollout.groups import seed_of
from hone.types import Int32, Trajectory

_groups = Groups()  # of this process: verl makes a loop for each rollout


class HoneAgentLoop(AgentLoopBase):
    """One rollout; verl makes an instance for each.

    Args:
        recipe: file of the run's settings.
    """

    def __init__(self, *args: Any, recipe: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recipe = Path(recipe)
        self._workers = int(self.rollout_config.agent.num_workers)  # they share the recipe's bounds

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """Return one output for each branch of the rollout; none for an infrastructure fault.

        verl takes the reward of a rollout without others as its advantage, where Hone's is 0: one that the
        faults of its group have left alone has mask 0.
        """
        rollout = self._rollout(sampling_params, **kwargs)
        trajectory, rewarded = await _groups.run(str(kwargs["uid"]), rollout)
        service = await self._service()
        alone = rewarded == 1 and _trains(kwargs)
        fields = loop_outputs(
            trajectory,
            masked=alone or service.is_masked(trajectory),
            version=max(0, int(kwargs["global_steps"]) - 1),
        )
        return [AgentLoopOutput(**each) for each in fields]

    async def _rollout(self, sampling_params: dict[str, Any], **kwargs: Any) -> Trajectory:
        service = await self._service()
        task_id, step = kwargs["extra_info"]["task_id"], int(kwargs["global_steps"])
        session = int(kwargs["session_id"])
        return await service.rollout(
            service.tasks[task_id],
            group_id=f"step{step}-{kwargs['uid']}",
            index=session,
            seed=seed_of(service.settings.seed, task_id, step, session),
            sampling=sampling_of(sampling_params, service.settings.sampling.max_tokens),
            evaluation=not _trains(kwargs),
        )

    async def _service(self) -> RolloutService:
        return await shared_service(self._recipe, self._generate, processes=self._workers)

    async def _generate(self, prompt_ids: Int32, sampling: Sampling, *, session: str) -> Completion:
        """Ask verl's engine. All instances of a worker have the same `server_manager`."""
        output = await self.server_manager.generate(
            request_id=session, prompt_ids=prompt_ids.tolist(), sampling_params=sampling_params(sampling)
        )
        return completion_of(output, sampling)


def _trains(kwargs: dict[str, Any]) -> bool:
    return kwargs["extra_info"]["split"] == "train"
