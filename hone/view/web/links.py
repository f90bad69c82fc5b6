"""Addresses of pages: paths on the server, relative file names in an export and beside a single page."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NAME_MAX = 120  # characters of a folder's name in an export
REPORT = "report.html"  # of an evaluation and of a sweep, in their directory


def page_path(*parts: str) -> str:
    """Return the path of a page; every part is quoted whole, so that it stays one part."""
    return "/" + "/".join(urllib.parse.quote(part, safe="", errors="replace") for part in parts)


def file_of(path: str) -> str:
    """Return the file of an export that holds the page at a path: `/runs/a` -> `runs/a/index.html`."""
    parts = [_folder(urllib.parse.unquote(part)) for part in path.split("/") if part]
    return "/".join([*parts, "index.html"])


def _folder(name: str) -> str:
    """Return a folder's name for any text: different texts have different names, none leads elsewhere."""
    safe = _UNSAFE.sub(lambda found: "~" + found[0].encode("utf-8", "surrogatepass").hex(), name)
    if len(safe) > _NAME_MAX:
        safe = safe[:80] + "~" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return "~" + safe if safe.strip(".") == "" else safe


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses as seen from one page."""

    page: str  # path of the page that holds them
    static: bool = False  # in an export, without a server
    alone: ClassVar[bool] = False

    def __call__(self, *parts: str, query: str = "", fragment: str = "") -> str:
        """Return the address of a page, such as `link("runs", name, "rollouts", query="step=3")`."""
        path = page_path(*parts)
        address = self._relative(file_of(path)) if self.static else path
        return address + (f"?{query}" if query else "") + (f"#{fragment}" if fragment else "")

    def file(self, run: str, *parts: str) -> str:
        """Return the address of a file of a run; "" in an export, which holds pages only."""
        return "" if self.static else page_path("runs", run, "files", *parts)

    def asset(self, name: str) -> str:
        return self._relative(f"assets/{name}") if self.static else f"/assets/{name}"

    def _relative(self, file: str) -> str:
        return posixpath.relpath(file, posixpath.dirname(file_of(self.page)) or ".")


@dataclass(frozen=True, slots=True)
class FileLinks:
    """Addresses as seen from one file that stands alone, with neither a server nor other pages around it.

    Only what lies on the disk when the page is written has an address: files of a run, and its report. Any
    other one is "", so that the page shows its text without a link.
    """

    page: Path  # the file
    runs: Mapping[str, Path]  # name -> directory, of the runs that the page shows
    static: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    def __call__(self, *parts: str, query: str = "", fragment: str = "") -> str:
        return self.file(parts[1], REPORT) if len(parts) == 2 and parts[0] == "runs" else ""

    def file(self, run: str, *parts: str) -> str:
        path = self.runs[run].joinpath(*parts)
        if not path.is_file():
            return ""
        return urllib.parse.quote(
            os.path.relpath(path.resolve(), self.page.parent.resolve()), errors="replace"
        )
