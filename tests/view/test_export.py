"""The export: files that lead to each other without a server."""

import urllib.parse
from pathlib import Path

import pytest

from hone.view.web.export import ExportError, export
from hone.view.web.links import Links, file_of
from tests.view.samples import SCRIPT, TASK, HandMade
from tests.view.test_server import Elements


def test_every_link_of_an_export_leads_to_one_of_its_files(tmp_path: Path):
    written = export(HandMade(), tmp_path / "out")
    pages = sorted((tmp_path / "out").rglob("*.html"))
    assert len(pages) == written.pages > 10
    for page in pages:
        text = page.read_text()
        assert SCRIPT not in text
        for _, attributes in Elements(text).elements:
            target = attributes.get("href") or attributes.get("src") or ""
            path = urllib.parse.unquote(target.partition("#")[0].partition("?")[0])
            if not path:  # a part of the same page
                continue
            assert not path.startswith(("/", "http"))
            assert (page.parent / path).is_file(), f"{page} links to {target}"


def test_what_is_missing_is_left_out_and_counted(tmp_path: Path):
    library = HandMade()
    library.missing = {"r-1"}
    assert export(library, tmp_path / "out").left_out == 2 * len(library.runs())


def test_a_directory_that_holds_files_is_refused(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ExportError, match="not empty"):
        export(HandMade(), tmp_path)


@pytest.mark.parametrize("name", ["../../etc", "..", ".", "a/b", "a\\b", "x" * 4000, TASK, ""])
def test_no_name_leads_out_of_the_export(name: str):
    file = file_of("/runs/" + urllib.parse.quote(name, safe=""))
    assert file.startswith("runs/")
    assert ".." not in file.split("/")
    assert all(len(part) < 200 for part in file.split("/"))


def test_links_of_an_export_are_relative_to_their_page():
    link = Links("/runs/a/rollouts", static=True)
    assert link("runs", "a") == "../index.html"
    assert link("runs", "a", "rollouts", "r", fragment="turn-3") == "r/index.html#turn-3"
    assert link.asset("hone.css") == "../../../assets/hone.css"
