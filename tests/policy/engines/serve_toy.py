"""Serve the toy model with SGLang's command line, limited to the flags that tests use.

The model is a folder with a tokenizer; a file `hang` or `fail` in it selects a fault. The program starts a
child process, as real servers do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

from tests.policy.engines.sglang_server import SglangServer


class Words:
    """The tokenizer in a folder, without the slow import of transformers."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def decode(self, ids: list[int], **settings: bool) -> str:
        return self._tokenizer.decode(ids, **settings)


async def serve(model: Path, port: int, context: int) -> None:
    server = SglangServer(Words(model), context=context)
    await server.start(port)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def main(arguments: list[str]) -> None:
    model = Path(arguments[arguments.index("--model-path") + 1])
    port = int(arguments[arguments.index("--port") + 1])
    context = int(arguments[arguments.index("--context-length") + 1])
    child = subprocess.Popen(["sleep", "1000"])
    (model / "pids").write_text(f"{os.getpid()} {child.pid}")
    if (model / "hang").exists():
        signal.pause()
    if (model / "fail").exists():
        raise RuntimeError((model / "fail").read_text())
    asyncio.run(serve(model, port, context))


if __name__ == "__main__":
    main(sys.argv)
