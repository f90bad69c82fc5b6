"""Render records as HTML.

Invariant: every printed value is escaped, hidden characters included; none becomes a script or a style.
"""

from __future__ import annotations

import functools
from typing import Any

import jinja2
from markupsafe import Markup

from hone.evaluate.html import make_environment
from hone.view.values import to_json
from hone.view.web import charts, figures
from hone.view.web.links import Links
from hone.view.web.query import write_filter

ASSETS = ("theme.js", "view.js", "tokens.js", "hone.css", "icon.svg")


def render(template: str, links: Links, **values: Any) -> str:
    """Return a page. Raises jinja2.UndefinedError when the template needs a value that is missing."""
    return _environment().get_template(template).render(link=links, static=links.static, **values)


def data_block(value: Any) -> Markup:
    """Return JSON to stand inside a `<script type="application/json">`, which no browser runs."""
    text = to_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704 - holds none of the characters that end or begin markup


@functools.cache
def _environment() -> jinja2.Environment:
    environment = make_environment("hone.view.web")
    environment.filters.update(
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
