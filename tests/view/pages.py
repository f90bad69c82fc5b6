"""Reading pages as a browser does: elements, text, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

VOID = {"meta", "link", "br", "img", "hr", "input"}
# Everything that a browser fetches by itself, or runs.
ACTIVE = {"script", "iframe", "object", "embed", "img", "link", "audio", "video", "source", "base", "form"}


@dataclass
class Page(HTMLParser):
    tags: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # attributes such as onload, or style with a url
    text: str = ""
    open: list[str] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "href" and value is not None:
                self.links.append(value)
            if name.startswith("on") or name in ("src", "srcset") or "url(" in (value or ""):
                self.events.append(f"{tag} {name}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def parse(html: str) -> Page:
    """The page. Asserts that it closes what it opens."""
    page = Page()
    page.feed(html)
    page.close()
    assert (page.unbalanced, page.open) == ([], [])
    return page


def read(html: str) -> Page:
    """The page of a file that stands alone. Asserts that it fetches nothing and runs nothing."""
    page = parse(html)
    assert not ACTIVE & set(page.tags)
    assert page.events == []
    assert "default-src 'none'; style-src 'sha256-" in html
    assert [link for link in page.links if urlsplit(link).scheme or link.startswith("/")] == []
    return page
