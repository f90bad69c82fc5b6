"""A model that writes the prose of statements from the fix and its tests.

Its text is checked by the rules of every statement; see `hone.curate.mining.statement`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.policy.reply import Chat
from hone.types import Message

_LONGEST = 12_000  # characters of each patch in the prompt
_PROMPT = """\
Below are a bug fix of a Python project, the tests that it makes pass, and the commit's message.
Write the issue that a user of the project would have filed before the fix.

- Say what the user does, what happens today and what should happen, with the values that the tests expect.
- Describe behaviour only. Do not say how to fix it, and quote no line of the fix.
- Name nothing that only the fix introduces, unless the tests use it.
- Do not mention the tests, the commit or the fix.
- Begin with a title of one line. Use at most 200 words, and no code blocks.

Message:
{message}

Fix:
{fix}

Tests:
{tests}

Tests that fail today: {failing}
"""
_FENCE = re.compile(r"\A```\w*\n(?P<inside>.*)\n```\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes statements by an endpoint that is open."""

    new_chat: Callable[[], Chat]  # opens a conversation

    async def write(self, message: str, fix: str, tests: str, failing: Sequence[str]) -> str:
        """Return the prose of a statement, as the model wrote it. Raises EngineError."""
        prompt = _PROMPT.format(
            message=message[:_LONGEST], fix=fix[:_LONGEST], tests=tests[:_LONGEST], failing=", ".join(failing)
        )
        request: Message = {"role": "user", "content": prompt}
        reply = await self.new_chat().reply([request])
        text = reply.content.strip()
        fenced = _FENCE.match(text)
        return fenced["inside"].strip() if fenced else text
