"""Two rollouts by slime's own rollout function, with Hone's data source and hooks; prints one line of JSON.

    python rollout.py RECIPE FOLDER    with slime's checkout and Hone on PYTHONPATH

A stand-in of router and SGLang server replies with the reference fix in every second conversation.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from argparse import Namespace
from collections import Counter
from typing import Any

from aiohttp import web
from slime.rollout.sglang_rollout import GenerateState, generate_rollout_async
from slime.utils.http_utils import init_http_client
from slime.utils.types import Sample

from hone.agents.scaffold import SUBMIT, load_scaffold
from hone.config import resolve
from hone.integrations.rollouts.process import close_services
from hone.integrations.slime.data_source import DataSource
from hone.integrations.slime.hooks import log_rollouts, post_process_rewards
from hone.policy.model import load_tokenizer
from hone.tasks.sources import load_splits

HOOKS = "hone.integrations.slime.hooks"


class Server:
    """Router and engine in one."""

    def __init__(self, recipe: str) -> None:
        settings = resolve(recipe)
        assert settings.model is not None
        self.tokenizer = load_tokenizer(settings.model.path)
        self.tasks = load_splits(settings.tasks).train
        self.scaffold = load_scaffold("tiny")
        self.ended = Counter[str]()
        self.version = 1

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = self.tokenizer.decode(body["input_ids"])
        task = next(task for task in self.tasks if task.problem in prompt)
        turn = prompt.count("assistant\n")
        command = "cat *.py"
        if turn > 1:
            self.ended[task.id] += 1
            patch = task.checks.gold_patch.rstrip("\n")
            fix = f"git apply <<'END_OF_PATCH'\n{patch}\nEND_OF_PATCH\n"
            command = (fix if self.ended[task.id] % 2 else "") + f"echo {SUBMIT}"
        reply = self.scaffold.reply(command)
        stop = body["sampling_params"]["stop_token_ids"][0]
        ids = [*self.tokenizer.encode(reply, add_special_tokens=False), stop]
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-0.25, token, None] for token in ids],
            "weight_version": str(self.version),
        }
        return web.json_response({"text": reply, "output_ids": ids, "meta_info": meta})

    async def workers(self, request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"id": "0", "url": f"http://{request.host}"}]})

    async def loads(self, _: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]})

    async def abort(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def start(self) -> int:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort)
        app.router.add_get("/workers", self.workers)
        app.router.add_get("/v1/loads", self.loads)
        runner = web.AppRunner(app)
        await runner.setup()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return port


def arguments(recipe: str, folder: str, port: int) -> Namespace:
    settings = resolve(recipe)
    assert settings.model is not None
    return Namespace(
        hone_recipe=recipe,
        hf_checkpoint=str(settings.model.path),
        save=folder,
        load=folder,
        rollout_global_dataset=True,
        rollout_batch_size=settings.groups_per_step,
        over_sampling_batch_size=settings.groups_per_step + 1,
        n_samples_per_prompt=settings.rollout.group_size,
        partial_rollout=False,
        mask_offpolicy_in_partial_rollout=False,
        group_rm=False,
        custom_generate_function_path=f"{HOOKS}.generate",
        custom_rm_path=f"{HOOKS}.reward",
        dynamic_sampling_filter_path=f"{HOOKS}.filter_group",
        rollout_sample_filter_path=None,
        rollout_all_samples_process_path=None,
        sglang_server_concurrency=16,
        sglang_dp_size=1,
        rollout_num_engines=1,
        use_distributed_post=False,
        sglang_router_ip="127.0.0.1",
        sglang_router_port=port,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=settings.sampling.max_tokens,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
        rollout_seed=0,
        reward_key=None,
    )


async def run(recipe: str, folder: str) -> list[dict[str, Any]]:
    server = Server(recipe)
    args = arguments(recipe, folder, await server.start())
    init_http_client(args)
    data = DataSource(args)
    found = []
    for rollout_id in range(2):
        server.version = rollout_id + 1
        output, aborted = await generate_rollout_async(args, rollout_id, data.get_samples)
        data.add_samples(aborted)
        data.save(rollout_id)
        flat: list[Sample] = [sample for group in output.samples for each in group for sample in each]
        raw, advantages = post_process_rewards(args, flat)
        extra: dict[str, Any] = {}
        log_rollouts(rollout_id, args, flat, extra, 1.0)
        found.append(
            {
                "groups": [sample.group_index for sample in flat],
                "rewards": raw,
                "advantages": advantages,
                "versions": sorted({version for sample in flat for version in sample.weight_versions}),
                "lengths": all(
                    len(s.loss_mask) == len(s.rollout_log_probs) == s.response_length for s in flat
                ),
                "statuses": sorted({sample.status.value for sample in flat}),
                "aborted": GenerateState(args).aborted,
                "metrics": extra | (output.metrics or {}),
            }
        )
    resumed = DataSource(args)
    resumed.load(1)
    found.append({"next": resumed.get_samples(1)[0][0].group_index})
    await close_services()
    return found


if __name__ == "__main__":
    print("FOUND " + json.dumps(asyncio.run(run(*sys.argv[1:]))))
