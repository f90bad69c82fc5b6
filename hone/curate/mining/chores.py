"""Lines of a commit message that say nothing about the fix: change log, tests, style, CI, reviews."""

from __future__ import annotations

import re

# A line of such words alone, at least one of them a chore, is left out.
_CHORE = re.compile(
    r"authors?|black|bugs?|changelog|changes|ci|cleanup|comments?|contributors|coverage|credits|docs?|docstrings?"
    r"|documentation|feedback|flake8|format|formatting|hints|history|isort|lint|linting|mypy|news|nits?|notes"
    r"|oops|pep8|pre-commit|pyflakes|pylint|readme|release|review|ruff|style|suggestions?|tests?|thanks|thx|tox|travis"
    r"|typos?|versions?|v?\d+(?:\.\d+)+\w*|whitespace|wip"
)
_FILLER = re.compile(
    r"a|add(?:ed|ing|s)?|address(?:ed)?|adjust|also|and|appl(?:ied|y)|bump(?:ed|s)?|cases?|clean|code"
    r"|corresponding|entr(?:ies|y)|expand|fix(?:ed|es)?|for|from|fully|improve|in|log|md|minor|missing|more|new|note|of"
    r"|please|pr|prepare|regression|releasing|respond|rst|run|some|the|this|to|tweak|txt|type|unit|up|updated?|updates"
    r"|with"
)
_MIN_STEP = 80  # characters of the message of a squashed commit that explains something
_NO_PROSE = re.compile(r"\W*(?:todo\b|cherry picked from\b).*|\s*[-=_*#]{3,}\s*", re.IGNORECASE)


def without_chores(message: str) -> str:
    """Return a message without its lines about chores.

    >>> without_chores("Keep the sign of zero\\n\\n* Update CHANGES.rst, bump version")
    'Keep the sign of zero'
    """
    lines = [line for line in _without_steps(message).splitlines() if not _is_chore(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _without_steps(message: str) -> str:
    """Return a message without the short titles of the commits that were squashed into it, each a bullet."""
    title, *body = re.split(r"\n\s*\n|\n(?=\* )", message.strip())
    steps = [part for part in body if not _NO_PROSE.fullmatch(part)]
    if not all(part.startswith("* ") for part in steps):
        return message
    return "\n\n".join([title, *(part for part in steps if len(part) >= _MIN_STEP)])


def _is_chore(line: str) -> bool:
    if _NO_PROSE.fullmatch(line):
        return True
    found = (word.strip(".,:;!?*()'`\"-#+").lower() for word in re.split(r"[\s/&]+", line))
    named = [word for word in found if word and not word.startswith("@")]
    parts = [part for word in named for part in ([word] if _CHORE.fullmatch(word) else word.split("."))]
    chores = [_CHORE.fullmatch(part) is not None for part in parts]
    return any(chores) and all(
        chore or _FILLER.fullmatch(part) for chore, part in zip(chores, parts, strict=True)
    )
