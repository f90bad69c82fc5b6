"""A web server on the host, and programs that use the proxy and the tunnel from inside a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hone.sandbox import Sandbox
from hone.sandbox.contract import TUNNEL_PATH

BIG = 3_000_000  # bytes of /big
# Send CONNECT; print the status, then the number of bytes of /big.
_CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128), timeout=60) as link:
    link.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    reply = link.recv(4096)
    print(reply.split()[1].decode())
    if b" 200 " in reply:
        link.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
        size = 0
        while data := link.recv(1 << 16):
            size += len(data)
        print(size)
"""
_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    link.sendall(b"hello\\n")
    print(link.makefile("rb").readline().decode(), end="")
"""


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"x" * BIG if self.path == "/big" else f"you asked for {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    """Serve pages on this machine's loopback; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


async def connect(sandbox: Sandbox, address: str) -> list[str]:
    """Return the status of CONNECT from inside, and the bytes of /big when it is 200."""
    return (await sandbox.exec(["python3", "-c", _CONNECT, address], timeout_s=120)).text.split()


async def ask(sandbox: Sandbox) -> str:
    """Send "hello" to the service behind the tunnel; return its reply."""
    return (await sandbox.exec(["python3", "-c", _ASK, TUNNEL_PATH], timeout_s=120)).text


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of `ask`."""
    writer.write(b"you said " + await reader.readline())
    writer.close()
