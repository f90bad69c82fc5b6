"""mkdocs' hooks: the menu, the home page from README.md, and the reference pages, made from the code."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import navigation
import reference

ROOT = navigation.ROOT
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Files outside docs/ that pages link to: their place in the site.
COPIES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}


def on_config(config: Any) -> Any:
    config.nav = navigation.navigation({name: page.title for name, page in reference.PAGES.items()})
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, target in COPIES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text()))
    for target, page in reference.PAGES.items():
        files.append(File.generated(config, target, content=page.text()))
    for name in linked_files():
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the place that a file has in the site; a link to a folder becomes its text."""
    uri = page.file.src_uri
    source = next((name for name, target in COPIES.items() if target == uri), f"docs/{uri}")

    def moved(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (ROOT / path).is_dir():
            return text
        place = place_in_site(path)
        place = posixpath.relpath(place, posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({place}{'#' + anchor if anchor else ''})"

    return outside_code(LINK, moved, markdown)


def place_in_site(path: str) -> str:
    """Return where a file of the repository, such as `docs/00-install.md`, lies in the site."""
    if path in COPIES:
        return COPIES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def linked_files() -> list[str]:
    """Return the files outside docs/ that a page links to and that are no pages themselves."""
    found: set[str] = set()
    for page in [*(ROOT / name for name in COPIES), *navigation.DOCS.rglob("*.md")]:
        for _, _, target in LINK.findall(page.read_text()):
            file = (page.parent / target.partition("#")[0]).resolve()
            if not re.match(r"[a-z]+:|#", target) and file.is_file() and ROOT in file.parents:
                name = file.relative_to(ROOT).as_posix()
                if not name.startswith("docs/") and name not in COPIES:
                    found.add(name)
    return sorted(found)


def outside_code(pattern: re.Pattern[str], replace: Any, markdown: str) -> str:
    """Replace in a page, but not in its fenced blocks."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [pattern.sub(replace, part) for part in parts[::2]]
    return "".join(parts)
