"""What the gateway adds to a call, what it takes from throughput, and whether long conversations cost more.

    python benchmarks/gateway.py [--turns 60] [--sessions 64] [--service-ms 1000]

The engine answers after a fixed time, so that nothing of it is measured. The same conversations, of the size
of a command-line agent's (a long system prompt, fourteen tools, replies with a tool call, results of 2 KB),
are held with the same kind of chat: called directly, in the engine's process, and through the gateway, by a
client in a process of its own that streams. What is compared is taken in turns. The last line is JSON:

added_ms_p50                median latency of a call through the gateway, less that of a chat called directly,
                            with an engine that takes no time
throughput_ratio            calls a second of --sessions conversations at a time through the gateway, by those
                            of the chats called directly
turn_cost_ratio_200_to_10   median latency of a turn through the gateway, HTTP and chat included, after 200
                            turns, by that after 10, with an engine that takes no time
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil

from hone.policy.chat import Chat
from hone.policy.engine import Completion, Finish, Sampling
from hone.policy.gateway import open_gateway
from hone.policy.model import make_renderer
from hone.policy.scripted import ScriptedCall, ScriptedReply, encode_reply
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer

SYSTEM = "You are an agent that fixes bugs in repositories. Read before you write, and run the tests.\n" * 120
RESULT = "     1\tdef total_price(items, tax):\n     2\t    return sum(item.price for item in items)\n" * 18
TOOLS = [
    {
        "name": f"tool_{i}",
        "description": "Reads or changes something in the repository, as its parameters say. " * 20,
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    for i in range(14)
]
_OFFERED = [{"type": "function", "function": tool} for tool in TOOLS]
REST = b"]," + json.dumps({"tools": _OFFERED, "stream": True})[1:].encode()  # how a request ends
REPLY = ScriptedReply(
    content="I look at the next file.",
    tool_calls=(ScriptedCall(name="tool_3", arguments={"path": "shop/cart.py"}),),
)
Reply = Callable[
    [list[dict[str, Any]]], Awaitable[dict[str, Any]]
]  # messages in, the assistant's message out


class FixedEngine:
    """Gives the same ids after the same time."""

    context_tokens = 10_000_000
    version = 0

    def __init__(self, ids: list[int], service_s: float) -> None:
        self._ids = np.asarray(ids, np.int32)
        self._zeros = np.zeros(len(ids), np.float32)
        self._service_s = service_s

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Completion:
        await asyncio.sleep(self._service_s)
        version = np.zeros(len(self._ids), np.int32)
        return Completion(token_ids=self._ids, logprobs=self._zeros, version=version, finish=Finish.STOP)

    async def release(self, session: str) -> None: ...


class Policy:
    def __init__(self) -> None:
        tokenizer = make_tokenizer(
            [SYSTEM, RESULT, json.dumps(TOOLS)] * 2, TinyModelSettings(vocab_size=2048)
        )
        self.renderer = make_renderer(tokenizer, "qwen3")
        self.ids = encode_reply(REPLY, self.renderer, tokenizer)

    def chat(self, service_s: float) -> Chat:
        return Chat(FixedEngine(self.ids, service_s), self.renderer, Sampling(max_tokens=4096), session="s")


class Talk:
    """A conversation with an agent that always reads the next file."""

    def __init__(self, reply: Reply, name: str) -> None:
        self._reply = reply
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Fix the bug. ({name})"},
        ]

    async def turn(self) -> tuple[float, float]:
        """When the call began and ended."""
        started = time.perf_counter()
        said = await self._reply(self._messages)
        times = said.pop("times", (started, time.perf_counter()))
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": RESULT}
        self._messages += [said, result]
        return times

    async def turns(self, count: int) -> list[tuple[float, float]]:
        return [await self.turn() for _ in range(count)]


def directly(chat: Chat) -> Reply:
    async def reply(messages: list[dict[str, Any]]) -> dict[str, Any]:
        said = await chat.reply(messages, tools=TOOLS)
        return {"role": "assistant", "content": said.content, "tool_calls": list(said.tool_calls)}

    return reply


class Client:
    """One conversation on one connection, with next to no time of its own: a message is encoded once."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._path, self._reader, self._writer = path, reader, writer
        self._encoded: list[bytes] = []

    @classmethod
    async def connect(cls, port: int, path: str) -> Client:
        return cls(path, *await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def reply(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        self._encoded += [json.dumps(message).encode() for message in messages[len(self._encoded) :]]
        body = b'{"model":"m","messages":[' + b",".join(self._encoded) + REST
        head = (
            f"POST {self._path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.perf_counter()
        self._writer.write(head.encode() + body)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in headers[:16], headers
        stream = b""
        while size := int(await self._reader.readline(), 16):
            stream += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        ended = time.perf_counter()
        return {**_message(stream), "times": (began, ended)}


def _message(stream: bytes) -> dict[str, Any]:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    call = next(delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta)
    parts = [c["function"].get("arguments", "") for d in deltas for c in d.get("tool_calls", ())]
    call["function"]["arguments"] = "".join(parts)
    call.pop("index")
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content, "tool_calls": [call]}


# --- the process with the engine


async def serve() -> None:
    """A gateway, and the same chats called directly, as the lines of the standard input ask for."""
    policy = Policy()
    alone = Talk(directly(policy.chat(0.0)), "alone")
    async with open_gateway(port=0) as gateway:
        print(gateway.url, flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            what, *numbers = json.loads(line)
            if what == "open":
                answer: Any = gateway.open(policy.chat(numbers[0])).path
            elif what == "close":
                answer = await gateway.close(
                    next(each for each in gateway.sessions if each.path == numbers[0])
                )
            elif what == "turn":
                answer = await alone.turn()
            else:
                service_s, turns, sessions = numbers
                talks = [Talk(directly(policy.chat(service_s)), str(i)) for i in range(sessions)]
                answer = await asyncio.gather(*(talk.turns(turns) for talk in talks))
            print(json.dumps(answer), flush=True)


class Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._line().rpartition(":")[2])
        self.pid = self._process.pid

    def ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return json.loads(self._line())

    async def talk(self, service_s: float, name: str) -> Talk:
        """A conversation through the gateway."""
        return await self.talk_at(self.ask("open", service_s), name)

    async def talk_at(self, path: str, name: str) -> Talk:
        """A conversation of the session at a path."""
        return Talk((await Client.connect(self.port, path)).reply, name)

    def cpu_ms(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return (times.user + times.system) * 1e3

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


# --- figures


def ms(times: tuple[float, float]) -> float:
    return (times[1] - times[0]) * 1e3


async def added(server: Server, turns: int) -> tuple[float, float]:
    """Median latencies, directly and through the gateway, of the same turns taken alternately."""
    talk = await server.talk(0.0, "alone")
    pairs = [(ms(server.ask("turn")), ms(await talk.turn())) for _ in range(turns)][2:]
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


async def added_cpu(server: Server, turns: int) -> float:
    """Processor time that the gateway adds to a call, in ms, where a busy machine disturbs latencies."""
    talk = await server.talk(0.0, "cpu")
    await talk.turns(2)
    began = server.cpu_ms()
    for _ in range(turns):
        server.ask("turn")
    between = server.cpu_ms()
    await talk.turns(turns)
    return (server.cpu_ms() - between - (between - began)) / turns


async def lengths(server: Server, repeats: int) -> tuple[float, float]:
    """Median latencies of turns 5 to 15 and of turns 195 to 205, taken alternately."""
    early: list[float] = []
    late: list[float] = []
    for _ in range(repeats):
        short, long = await server.talk(0.0, "short"), await server.talk(0.0, "long")
        await short.turns(4)
        await long.turns(194)
        for _ in range(11):
            early.append(ms(await short.turn()))
            late.append(ms(await long.turn()))
    return statistics.median(early), statistics.median(late)


async def rates(server: Server, service_s: float, sessions: int, rounds: int) -> tuple[float, float]:
    """Median calls a second, directly and through the gateway, in alternate rounds."""
    directly: list[float] = []
    through: list[float] = []
    for _ in range(rounds):
        directly.append(rate(server.ask("talks", service_s, 10, sessions)))
        talks = [await server.talk(service_s, str(i)) for i in range(sessions)]
        through.append(rate(await asyncio.gather(*(talk.turns(10) for talk in talks))))
    return statistics.median(directly), statistics.median(through)


def rate(talks: list[list[tuple[float, float]]]) -> float:
    """Calls a second from when every conversation has had a turn until the first one ends."""
    begin, end = max(talk[0][1] for talk in talks), min(talk[-1][1] for talk in talks)
    return sum(begin < ended <= end for talk in talks for _, ended in talk) / (end - begin)


async def measure(args: argparse.Namespace) -> dict[str, float]:
    server = Server()
    try:
        direct, through = await added(server, args.turns)
        print(f"one at a time: {direct:.2f} ms directly, {through:.2f} ms through the gateway")
        cpu = await added_cpu(server, args.turns)
        early, late = await lengths(server, 3)
        print(f"turn 10: {early:.2f} ms, turn 200: {late:.2f} ms")
        calls_direct, calls = await rates(server, args.service_ms / 1e3, args.sessions, 3)
        print(
            f"{args.sessions} at a time: {calls_direct:.1f} calls/s directly, {calls:.1f} through the gateway"
        )
    finally:
        server.close()
    return {
        "added_ms_p50": round(through - direct, 3),
        "throughput_ratio": round(calls / calls_direct, 4),
        "turn_cost_ratio_200_to_10": round(late / early, 3),
        "added_cpu_ms": round(cpu, 3),
        "direct_ms_p50": round(direct, 3),
        "turn_10_ms": round(early, 3),
        "turn_200_ms": round(late, 3),
        "calls_per_s": round(calls, 1),
        "sessions": args.sessions,
        "service_ms": args.service_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--service-ms", type=float, default=1000.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
    else:
        print(json.dumps(asyncio.run(measure(args))))


if __name__ == "__main__":
    main()
