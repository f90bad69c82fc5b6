"""What Hone checks of a Dockerfile before it is built: what a builder would get wrong in silence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hone.sandbox.contract import ProviderUnavailable
from hone.utils.dockerfile import Instruction, read_instructions

DOCKERFILE = "Dockerfile"  # in the directory that is the context of its build
# A quoted text, unless it is the quoted name of a heredoc.
_QUOTED = re.compile(r"""(?<!<<)(?<!<<-)(?:'[^']*'|"(?:\\.|[^"\\])*")""")
_HEREDOC = re.compile(r"(?:^|\s)\d*<<-?['\"]?[A-Za-z_][\w.-]*")
_REMOTE = re.compile(r"(?:https?|ftp|git|ssh)://|git@", re.IGNORECASE)
_FILES = ("RUN", "COPY", "ADD")  # instructions that change files
NO_NETWORK = 'the build has no network, since the network_mode of its task is not "public"'


def read_dockerfile(context: Path, *, network: bool) -> list[Instruction]:
    """Return the instructions of a directory's Dockerfile. Raises ProviderUnavailable; see `check`."""
    try:
        text = (context / DOCKERFILE).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(f"its Dockerfile cannot be read ({error})") from error
    instructions = read_instructions(text)
    check(instructions, network=network)
    return instructions


def check(instructions: Sequence[Instruction], *, network: bool) -> None:
    """Raise ProviderUnavailable, one sentence, for what would be built wrongly."""
    volume = ""  # of the stage, and the directory
    for found in instructions:
        name, value = found.name, found.value
        if name == "ONBUILD":
            name, _, value = value.partition(" ")
            name = name.upper()
        where = f"line {found.line} of the Dockerfile, `{_shorten(f'{name} {value}')}`,"
        if name in _FILES and _HEREDOC.search(_QUOTED.sub("''", value)):
            raise refusal(
                f"{where} has a heredoc, which not every builder knows: copy a file of the context, or join "
                "the lines by && and \\"
            )
        if name == "ADD" and not network and _REMOTE.search(value):
            raise refusal(f"{where} fetches from the network, but {NO_NETWORK}")
        if name == "FROM":
            volume = ""
        elif name == "VOLUME":
            volume = value
        elif name in _FILES and volume:
            raise refusal(
                f"{where} follows VOLUME {volume}, after which some builders drop changes of that directory: "
                "move VOLUME to the end of the stage"
            )


def refusal(reason: str) -> ProviderUnavailable:
    """Return the error for a Dockerfile that cannot be built."""
    return ProviderUnavailable(f"the image cannot be built: {reason}", retryable=False)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."
