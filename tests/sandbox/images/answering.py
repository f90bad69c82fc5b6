"""A small HTTP server that answers as a failing registry does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


@dataclass(slots=True)
class Answering:
    address: str
    requests: list[str] = field(default_factory=list)  # paths of requests
    at_once: int = 0  # most requests being answered at a time


@contextlib.contextmanager
def answering(
    statuses: Sequence[int], *, then: str = "", hold: threading.Event | None = None
) -> Iterator[Answering]:
    """Answer requests with these statuses, one after the other.

    Args:
        then: address of a registry to which further requests are passed; "" repeats the last status.
        hold: no request is answered before it is set.
    """
    waiting = list(statuses)
    mutex = threading.Lock()
    open_now = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal open_now
            with mutex:
                open_now += 1
                seen.requests.append(self.path)
                seen.at_once = max(seen.at_once, open_now)
                status = waiting.pop(0) if len(waiting) > (0 if then else 1) else (waiting or [0])[0]
            if hold is not None:
                hold.wait(60)
            with mutex:  # before the answer: the asker may come again as soon as it has it
                open_now -= 1
            if status:
                self._answer(status, {"Retry-After": "0"}, b"")
            else:
                answer = httpx.get(
                    f"http://{then}{self.path}",
                    headers={"Accept": self.headers.get("Accept", "*/*")},
                    timeout=60,
                )
                kept = {key: answer.headers[key] for key in ("Content-Type", "Docker-Content-Digest",
                        "Docker-Distribution-Api-Version") if key in answer.headers}  # fmt: skip
                self._answer(answer.status_code, kept, answer.content)

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen = Answering(address=f"127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
