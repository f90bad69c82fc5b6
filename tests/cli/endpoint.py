"""An OpenAI-compatible endpoint on this machine whose replies are scripted, as any text-only engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Talk = Callable[[list[dict[str, Any]]], str]  # the messages so far -> the next reply


@dataclass(kw_only=True)
class Endpoint:
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # bodies of chat completions
    headers: list[str] = field(default_factory=list[str])  # Authorization of every request


@contextmanager
def endpoint(talk: Talk, *cards: dict[str, Any]) -> Generator[Endpoint]:
    """Serves the models of `cards`; each prompt counts 100 tokens, each reply 10."""
    served = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.headers.append(self.headers.get("Authorization", ""))
            found = self.path == "/v1/models"
            self._answer(200 if found else 404, {"object": "list", "data": list(cards)} if found else {})

        def do_POST(self) -> None:
            served.headers.append(self.headers.get("Authorization", ""))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append(body)
            message = {"role": "assistant", "content": talk(body["messages"])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            self._answer(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
