"""Render records as HTML.

Invariant: every printed value is escaped, hidden characters included; none becomes a script or a style.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import shlex
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from hone.evaluate.words import duration, number, percent, short
from hone.utils.text import visible
from hone.view.values import to_json
from hone.view.web import charts, figures
from hone.view.web.links import FileLinks, Links
from hone.view.web.query import write_filter

ASSETS = ("theme.js", "view.js", "tokens.js", "hone.css", "icon.svg")


def render(template: str, links: Links | FileLinks, **values: Any) -> str:
    """Return a page. Raises jinja2.UndefinedError when the template needs a value that is missing."""
    return _environment().get_template(template).render(link=links, static=links.static, **values)


def read_asset(name: str) -> bytes:
    """Return a file that pages load; `name` is one of ASSETS."""
    return (resources.files("hone.view.web") / "assets" / name).read_bytes()


def data_block(value: Any) -> Markup:
    """Return JSON to stand inside a `<script type="application/json">`, which no browser runs."""
    text = to_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704 - holds none of the characters that end or begin markup


@functools.cache
def style() -> tuple[Markup, str]:
    """Return the style sheet for a page that stands alone, and its hash for a Content-Security-Policy."""
    sheet = read_asset("hone.css")
    digest = base64.b64encode(hashlib.sha256(sheet).digest()).decode()
    return Markup(sheet.decode()), f"sha256-{digest}"  # noqa: S704 - a file of this package


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hone.view.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        duration=duration,
        percent=percent,
        short=short,
        figure=figures.figure,
        reward=figures.reward,
        points=figures.points,
        ago=figures.ago,
        moment=figures.moment,
        outcome_class=figures.outcome_class,
        fault=figures.fault,
        shell=shlex.quote,
        data_block=data_block,
    )
    environment.globals.update(
        spark_path=charts.spark_path, share_parts=charts.share_parts, write_filter=write_filter, style=style
    )
    return environment


def _finalize(value: Any) -> Any:
    """Return a printed value before it is escaped; Markup comes from a template and is kept."""
    if isinstance(value, Markup):
        return value
    return visible(str(value))
