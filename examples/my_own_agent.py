"""An agent of your own: one question with the whole repository in it, one command as the answer.

    .venv/bin/python examples/my_own_agent.py ADDRESS MODEL

ADDRESS is that of a vLLM, SGLang or OpenAI-compatible server. It prints the outcome and the patch. An agent
has one method, which talks to `chat`, acts in `sandbox` and records into `run`; it may serve many rollouts at
once, so it keeps no state. With a server that returns token ids, its rollouts can be trained on.
"""

import re
import sys

import hone
from hone.agents import AgentRun
from hone.agents.contract import Limits, Step, run_loop
from hone.policy.reply import Chat, Reply
from hone.sandbox import Sandbox
from hone.types import Task


class OneCommand:
    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        files = await sandbox.exec("git ls-files -z '*.py' | xargs -0 head -v -c 4000")
        ask = "Fix the bug. Reply with one ```bash block; it runs in the repository."
        run.messages.append({"role": "user", "content": f"{task.problem}\n\n{files.text}\n\n{ask}"})

        async def act(reply: Reply) -> Step:
            run.messages.append(reply.to_message())
            found = re.search(r"```bash\n(.*?)\n```", reply.content, re.DOTALL)
            if found is None:
                return Step(observation="no command", submitted=True)
            result = await sandbox.exec(found[1], merge_stderr=True)
            return Step(action=found[1], exit_code=result.exit_code, observation=result.text, submitted=True)

        await run_loop(chat, run, Limits(turns=1), act)


def main() -> None:
    task = hone.load_tasks("curriculum", train=1, test=0, unseen=0)[0]
    rollout = hone.run(task, OneCommand(), engine=sys.argv[1], model=sys.argv[2])
    print(f"{task.id}: {rollout.outcome}\n{rollout.patch}")


if __name__ == "__main__":
    main()
