"""What a turn of a conversation costs besides the engine, after 10 turns and after 200.

    python benchmarks/turns.py [--repeats 5]

A turn: the whole conversation is passed again (fresh objects, as from a client's request), measured,
composed into a prompt, and its reply laid into the token tree; with the renderer of a model family, and with
a chat template used as it is. The peer renders the whole conversation with `apply_chat_template` each turn,
in the same run. Processor time; the least of each turn over the repeats. The last line is JSON:

turn_cost_ratio_200_to_10            family's renderer: median turn around the 200th, by that around the 10th
template_turn_cost_ratio_200_to_10   the same with the chat template used as it is
ratios.rendering_again                time of the peer's 200th turn, by that of the family's renderer
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from hone.policy.chat import Chat
from hone.policy.engine import Completion, Finish, Sampling
from hone.policy.model import make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer

TURNS, EARLY, LATE = 205, slice(5, 15), slice(195, 205)
REPLY = "I look at the next file.\n```bash\nsed -n 1,20p shop/cart.py\n```"
OUTPUT = "     1\tdef total_price(items, tax):\n     2\t    return sum(item.price for item in items)\n" * 3


class FixedEngine:
    """Gives the same ids at once."""

    context_tokens = 10_000_000
    version = 0

    def __init__(self, ids: list[int]) -> None:
        self._ids = np.asarray(ids, np.int32)

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Completion:
        zeros = np.zeros(len(self._ids), np.float32)
        return Completion(
            token_ids=self._ids, logprobs=zeros, version=zeros.astype(np.int32), finish=Finish.STOP
        )


async def turns(tokenizer: Any, name: str) -> tuple[list[float], list[float]]:
    """Seconds of each turn, of Hone's and of the peer's, one conversation after the other."""
    renderer = make_renderer(tokenizer, name)
    ids = [*tokenizer.encode(REPLY, add_special_tokens=False), renderer.get_stop_token_ids()[0]]
    chat: Any = Chat(FixedEngine(ids), renderer, Sampling(), session="s")  # type: ignore[arg-type]
    messages = [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "Fix the bug."}]
    own: list[float] = []
    for i in range(TURNS):
        given = json.loads(json.dumps(messages))
        begun = time.process_time()
        chat.measure(given)
        reply = await chat.reply(given)
        own.append(time.process_time() - begun)
        messages.append({"role": "assistant", "content": reply.content})
        messages.append({"role": "user", "content": f"{OUTPUT}{i}"})
    assert not chat.forks, chat.forks
    peer: list[float] = []
    for i in range(TURNS):
        begun = time.process_time()
        tokenizer.apply_chat_template(messages[: 2 * i + 2], add_generation_prompt=True, return_dict=False)
        peer.append(time.process_time() - begun)
    return own, peer


def median_ms(samples: Sequence[Sequence[float]], where: slice) -> float:
    return 1000 * statistics.median(min(turn) for turn in list(zip(*samples, strict=True))[where])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="conversations with each renderer")
    repeats: int = parser.parse_args().repeats
    tokenizer = make_tokenizer([OUTPUT, REPLY] * 3, TinyModelSettings())
    metrics: dict[str, float] = {}
    peers: dict[str, float] = {}
    for label, name in (("", "qwen3"), ("template_", "default")):
        results = [asyncio.run(turns(tokenizer, name)) for _ in range(repeats)]
        own, peer = [result[0] for result in results], [result[1] for result in results]
        early, late = median_ms(own, EARLY), median_ms(own, LATE)
        metrics |= {
            f"{label}turn_ms_10": round(early, 3),
            f"{label}turn_ms_200": round(late, 3),
            f"{label}turn_cost_ratio_200_to_10": round(late / early, 3),
        }
        peers[f"{label}rendering_again_ms_200"] = round(median_ms(peer, LATE), 3)
        print(
            f"{name:8} {early:.2f} ms at 10 turns, {late:.2f} ms at 200; again {median_ms(peer, LATE):.2f} ms"
        )
    ratios = {"rendering_again": round(peers["rendering_again_ms_200"] / metrics["turn_ms_200"], 2)}
    print(json.dumps({"name": "turns", "metrics": metrics, "peers": peers, "ratios": ratios}))


if __name__ == "__main__":
    main()
