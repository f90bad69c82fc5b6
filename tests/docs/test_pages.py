"""Pages of docs/: the menu is complete, links lead somewhere, blocks are valid, tables are current."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import hone
from hone.agents.blackbox.program import load_program
from hone.cli import main
from hone.config import RunSettings, resolve, walk
from tests.docs.blocks import DOCS, PAGES, ROOT, RUNNABLE, Block, all_blocks, hone_commands

sys.path.insert(0, str(ROOT / "scripts" / "site"))
import hardware  # pyright: ignore[reportMissingImports]
import navigation  # pyright: ignore[reportMissingImports]
import reference  # pyright: ignore[reportMissingImports]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
BLOCKS = all_blocks()


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_every_page_is_in_the_menu_once() -> None:
    listed: list[str] = []

    def collect(entries: object) -> None:
        if isinstance(entries, str):
            listed.append(entries)
        elif isinstance(entries, list):
            for entry in entries:
                collect(entry)
        elif isinstance(entries, dict):
            for entry in entries.values():
                collect(entry)

    collect(navigation.navigation({}))
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, "index.md", "contributing.md"])


def test_a_new_page_is_in_the_menu_without_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "00-install.md").write_text("# Install\n")
    (tmp_path / "99-new.md").write_text("# A new page: with more words\n")
    monkeypatch.setattr(navigation, "DOCS", tmp_path)
    assert [(name, [navigation.title(page) for page in found]) for name, found in navigation.sections()] == [
        ("Start", ["Install"]),
        ("More", ["A new page"]),
    ]


def test_two_pages_of_one_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("07-one.md", "07-two.md"):
        (tmp_path / name).write_text("# Page\n")
    monkeypatch.setattr(navigation, "DOCS", tmp_path)
    with pytest.raises(ValueError, match=r"07-two\.md and 07-one\.md have the same number"):
        navigation.pages()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a code host and the site make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    broken: list[str] = []
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_comment_before_a_block_is_understood() -> None:
    """One of another form would be passed over silently."""
    odd = [
        f"{page.name}: {comment}"
        for page in PAGES
        for comment in re.findall(r"^ *<!-- (.*?) -->\n *```", page.read_text(), re.MULTILINE)
        if not re.fullmatch(r"not run: [\w`].+|file: [\w./-]+", comment)
    ]
    assert odd == []


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.where)
def test_python_block_compiles(block: Block) -> None:
    compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.where)
def test_toml_block_is_valid(block: Block, tmp_path: Path) -> None:
    """A recipe, or a part of one, is resolved; the file of a program is loaded."""
    if re.search(r"^\[run\]", block.text, re.MULTILINE):
        (tmp_path / "package-lock.json").write_text("{}")
        (tmp_path / "program.toml").write_text(program_file(block.text))
        assert load_program(str(tmp_path / "program.toml")).run.command
        return
    (tmp_path / "recipe.toml").write_text(block.text.replace('"recipes/', f'"{ROOT}/recipes/'))
    resolve(tmp_path / "recipe.toml", ["model.path=models/x"])


def program_file(text: str) -> str:
    """Complete the fragment of a program's file: a page may leave out name and installation."""
    text = text.replace("sha512-...", f"sha512-{'A' * 86}==")
    head = "" if text.startswith("name") else 'name = "x"\nwire = "openai"\n'
    return text if "[install]" in text else f'{head}[install]\nkind = "directory"\nsource = "."\n{text}'


def typed_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the calls of hone in blocks that show a terminal; for bash see tests/test_repository.py."""
    for block in of("text", "sh", ""):
        lines = [line for line in block.commands if re.match(r"(\$ )?(\w+=\S+ )*hone ", line)]
        for words in hone_commands(replace(block, text="\n".join(lines))):
            yield block.where, words


@pytest.mark.parametrize(("where", "words"), list(typed_commands()))
def test_typed_command_has_known_options(
    where: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = words.index("--") if "--" in words else len(words)
    monkeypatch.setattr(sys, "argv", ["hone", *words[:end], "--help", *words[end:]])
    assert main() == 0, where


def test_hardware_page_equals_the_plans() -> None:
    assert hardware.PAGE.read_text() == hardware.page(), "run: python scripts/site/hardware.py"


def test_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    outside = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//")
    assert [name for name, text in pages.items() if outside.search(text)] == []
    styles = [style.name for style in tmp_path.rglob("*.css") if "url(http" in style.read_text()]
    assert styles == []
    assert {f"{page.relative_to(DOCS).with_suffix('.html')}" for page in DOCS.rglob("*.md")} <= set(pages)
    assert "train.algorithm" in pages["reference/settings.html"]
    assert "hone tasks validate" in pages["reference/commands.html"]
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 100_000


def test_runnable_blocks_use_the_languages_of_the_runner() -> None:
    odd = [b.where for b in BLOCKS if b.language not in (*RUNNABLE, "text", "sh", "json", "")]
    assert odd == []


def test_python_page_shows_signatures_and_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    def grade(patch: str, *, timeout_s: float = 60.0) -> bool:
        """Grade a patch.

        Args:
            patch: in git's format.
            timeout_s: seconds of the tests,
                all together.

        Raises:
            ValueError: the patch is empty.

        Example:
            grade("diff --git ...")
        """
        return bool(patch)

    monkeypatch.setattr(hone, "__all__", ["grade"], raising=False)
    monkeypatch.setattr(hone, "grade", grade, raising=False)
    page = reference.python_page()
    assert "## hone.grade {: #grade }" in page
    assert "grade(patch: str, *, timeout_s: float = 60.0) -> bool" in page
    assert "- `patch`: in git's format.\n- `timeout_s`: seconds of the tests, all together." in page
    assert "- `ValueError`: the patch is empty." in page
    assert '```python\ngrade("diff --git ...")\n```' in page


def test_settings_page_has_every_setting() -> None:
    page = reference.settings_page()
    for setting in walk(RunSettings):
        name = f"[{setting.path}]" if setting.group else f"| `{setting.path.rpartition('.')[2]}`"
        assert name in page
