"""Pages out of templates: self-contained, without scripts, safe to show text that a model wrote.

The rule that must not break: whatever a template prints is made visible and escaped; nothing on a page is
fetched or run.
"""

from __future__ import annotations

import functools
import re
import urllib.parse
from typing import Any

import jinja2
from markupsafe import Markup

from hone.evaluate.words import duration, number, percent, short

# Characters that a browser would hide, obey or reorder text by: controls but tab and newline, surrogates,
# and format characters such as the bidirectional overrides.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def render(template: str, **values: Any) -> str:
    """The page; a value that the template names and that is not given raises."""
    return _environment().get_template(template).render(**values)


def visible(text: str) -> str:
    r"""The text with every hidden character written out as Python does: an escape becomes \x1b."""
    return _HIDDEN.sub(lambda found: _escape(found.group()), text)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hone.evaluate"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, percent=percent, short=short, link=_link)
    return environment


def _link(path: str) -> str:
    """A path below the page, as a link: a colon is quoted, so that it never names a scheme."""
    return urllib.parse.quote(path, errors="replace")


def _finalize(value: Any) -> Any:
    """What is printed, before it is escaped; what is already markup came from a template."""
    if isinstance(value, Markup):
        return value
    return visible(str(value))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"
