"""Fail on words that hide what the code does: private metaphors, and pronouns where a subject has a name.

    python scripts/check_words.py [FILE ...]     default: every tracked source, test, page and recipe

The list is short on purpose: a word is on it only where no use of it in this repository is right.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUGGESTIONS = {
    r"witness(es)?": "probe, reference",
    r"keepers?": "supervisor",
    r"doubt(s|ed|ful)?": "mark_unhealthy, suspect",
    r"trouble[sd]?": "error, last_error",
    r"patience": "timeout, retry_delay_s",
    r"shel(f|ves)": "store, cache",
    r"desks?": "queue, registry",
    r"furnish(es|ed|ing)?": "prepare",
    r"twins?": "small variant, replica",
    r"anew": "again, from the start",
    r"mend(s|ed|ing)?": "fix, repair",
    r"whoever": "name the subject: the caller, the user, the process",
    r"somebody": "name the subject: another process, the user",
    r"(is|are|be|was|were) had": "installed, available, obtained",
    r"(comes|came|come) to nothing": "has no effect, fails",
}
SUFFIXES = {".py", ".md", ".toml", ".sh", ".jinja", ".yaml", ".sql"}
_PATTERN = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(f'({p})' for p in SUGGESTIONS)})(?![A-Za-z])", re.I)


def check(path: Path) -> list[str]:
    """Return one line per banned word in a file."""
    found: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for match in _PATTERN.finditer(line.replace("_", " ")):
            word = match[0].strip()
            hint = next(hint for p, hint in SUGGESTIONS.items() if re.fullmatch(p, match[0], re.I))
            found.append(f"{path}:{number}: {word!r}: write {hint}")
    return found


def main() -> int:
    names = (
        sys.argv[1:]
        or subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    )
    own = Path(__file__).resolve()
    paths = [path for path in map(Path, names) if path.suffix in SUFFIXES and path.is_file()]
    found = [line for path in paths if path.resolve() != own for line in check(path)]
    print("\n".join(found))
    if found:
        print(f"{len(found)} words to replace; see the list in scripts/check_words.py")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
