"""A package index over HTTP that knows the day on which each file was uploaded (PEP 691 and 700)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.tasks.index import Index

_TYPE = "application/vnd.pypi.simple.v1+json"


class DatedIndex(Index):
    """The packages of a folder; `add` takes the day of the upload."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.days: dict[str, str] = {}  # file -> day
        self.outages: dict[str, int] = {}  # project -> requests of its page that fail from now on

    def add_on(self, day: str, name: str, version: str, *requires: str) -> None:
        known = set(self.folder.glob("*/*.whl"))
        self.add(name, version, requires)
        for wheel in set(self.folder.glob("*/*.whl")) - known:
            self.days[wheel.name] = day

    def page(self, name: str) -> bytes | None:
        """Return the JSON page of a project, or None."""
        wheels = sorted((self.folder / name).glob("*.whl"))
        if not wheels:
            return None
        files = [
            {
                "filename": wheel.name,
                "url": f"../files/{name}/{wheel.name}",
                "hashes": {},
                "upload-time": f"{self.days.get(wheel.name, '2000-01-01')}T00:00:00Z",
            }
            for wheel in wheels
        ]
        return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()


@contextmanager
def serve(index: DatedIndex) -> Iterator[str]:
    """Yield the URL of the index."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            *_, folder, name = self.path.strip("/").split("/") if "/files/" in self.path else ("", "", "")
            if folder:
                self.answer((index.folder / folder / name).read_bytes(), "application/octet-stream")
                return
            name = self.path.strip("/").rpartition("/")[2]
            if index.outages.get(name, 0) > 0:
                index.outages[name] -= 1
                self.send_error(503)
                return
            page = index.page(name)
            self.answer(page, _TYPE) if page is not None else self.send_error(404)

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
        finally:
            server.shutdown()
            thread.join()
