"""Render HTML pages from templates: self-contained, without scripts, safe for text that a model wrote.

Invariant: every printed value is escaped, hidden characters included; a page fetches and runs nothing.
"""

from __future__ import annotations

import functools
import urllib.parse
from typing import Any

import jinja2
from markupsafe import Markup

from hone.evaluate.words import duration, number, percent, short
from hone.utils.text import visible


def render(template: str, **values: Any) -> str:
    """Return the page. Raises jinja2.UndefinedError when the template needs a value that is missing."""
    return _environment().get_template(template).render(**values)


def make_environment(package: str) -> jinja2.Environment:
    """Return an environment with the templates of a package, which escapes every printed value."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, percent=percent, short=short)
    return environment


@functools.cache
def _environment() -> jinja2.Environment:
    environment = make_environment("hone.evaluate")
    environment.filters["link"] = _link
    return environment


def _link(path: str) -> str:
    """Return a relative path as a link; a colon is quoted, so that it never becomes a URL scheme."""
    return urllib.parse.quote(path, errors="replace")


def _finalize(value: Any) -> Any:
    """Return a printed value before it is escaped; Markup comes from a template and is kept."""
    if isinstance(value, Markup):
        return value
    return visible(str(value))
