"""Render records as HTML.

Invariant: every printed value is escaped, hidden characters included; none becomes a script or a style.
"""

from __future__ import annotations

import functools
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from hone.evaluate.words import duration, number, percent, short
from hone.utils.text import visible
from hone.view.web import charts, figures
from hone.view.web.links import Links
from hone.view.web.query import write_filter

ASSETS = ("theme.js", "view.js", "tokens.js", "hone.css", "icon.svg")


def render(template: str, links: Links, **values: Any) -> str:
    """Return a page. Raises jinja2.UndefinedError when the template needs a value that is missing."""
    return _environment().get_template(template).render(link=links, static=links.static, **values)


def to_json(value: Any) -> bytes:
    """Return records as JSON; a number that JSON does not have is null."""
    return msgspec.json.encode(value, enc_hook=_plain)


def data_block(value: Any) -> Markup:
    """Return JSON to stand inside a `<script type="application/json">`, which no browser runs."""
    text = to_json(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704 - holds none of the characters that end or begin markup


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or array, or a path, as a value of JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


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
        ago=figures.ago,
        moment=figures.moment,
        outcome_class=figures.outcome_class,
        data_block=data_block,
    )
    environment.globals.update(
        spark_path=charts.spark_path, share_parts=charts.share_parts, write_filter=write_filter
    )
    return environment


def _finalize(value: Any) -> Any:
    """Return a printed value before it is escaped; Markup comes from a template and is kept."""
    if isinstance(value, Markup):
        return value
    return visible(str(value))
