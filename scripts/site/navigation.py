"""The menu of the docs site: pages are found by their files; one that no section names is under "More"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

# The numbers of docs/NN-*.md, in the order of the menu. A number without a page is passed over.
SECTIONS: dict[str, tuple[int, ...]] = {
    "Start": (0, 1, 34, 2, 35, 33, 37, 22),
    "Tasks": (5, 14, 15, 27),
    "Agents": (16, 17, 18, 21),
    "Grading": (6, 8, 26),
    "Training": (3, 7, 23, 19, 24, 25, 36),
    "Machines": (4, 10, 11, 12, 13, 20),
    "Other programs": (30, 29, 32, 31, 28),
    "When it fails": (9,),
}
PATHS = ("evaluate", "train", "fleet", "algorithm", "trust")  # docs/paths/*.md, one for each reader


def pages() -> dict[int, Path]:
    """Return the numbered pages.

    Raises:
        ValueError: two pages have one number.
    """
    found: dict[int, Path] = {}
    for path in sorted(DOCS.glob("[0-9][0-9]-*.md")):
        number = int(path.name[:2])
        if number in found:
            raise ValueError(f"{path.name} and {found[number].name} have the same number; give one another")
        found[number] = path
    return found


def title(path: Path) -> str:
    """Return the heading of a page up to its first colon, as the menu shows it.

    Raises:
        ValueError: the page does not begin with a heading.
    """
    match = re.match(r"# (.+)", path.read_text())
    if match is None:
        raise ValueError(f"{path.name} does not begin with a heading: write `# Title` in its first line")
    return match[1].split(":")[0].replace("`", "")


def sections() -> Iterator[tuple[str, list[Path]]]:
    """Yield the sections of numbered pages; every page is in exactly one."""
    rest = pages()
    for name, numbers in SECTIONS.items():
        if found := [rest.pop(number) for number in numbers if number in rest]:
            yield name, found
    if rest:
        yield "More", list(rest.values())


def navigation(generated: dict[str, str]) -> list[dict[str, Any]]:
    """Return mkdocs' `nav`. `generated`: the titles of the reference's pages by their files."""
    paths = [DOCS / "paths" / f"{name}.md" for name in PATHS]
    menu: list[dict[str, Any]] = [
        {"Home": "index.md"},
        {"Paths": [{title(path): path.relative_to(DOCS).as_posix()} for path in paths]},
    ]
    menu += [{name: [{title(page): page.name} for page in found]} for name, found in sections()]
    menu.append({"Reference": [{name: file} for file, name in generated.items()]})
    menu.append({"Contributing": "contributing.md"})
    return menu
