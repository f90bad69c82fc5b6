"""Statements that a model writes pass the same rules as all others; the model is at a real endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli.errors import UsageError
from hone.cli.mine import writer_settings
from hone.curate.mining.candidates import CommitRejected, Reason
from hone.curate.mining.writer import Writer
from hone.policy.engine import EngineError, Sampling
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.openai import OpenAIChat
from hone.policy.reply import Reply
from hone.policy.settings import OpenAIEngineSettings
from hone.types import Message
from tests.cli.endpoint import Endpoint, endpoint
from tests.curate.mining.projects import FIXED
from tests.curate.mining.test_statement import EXAMPLE, written

ISSUE = "Wrong total\n\nThe total of three prices is 5, not 6: the first price is left out."
MODEL = {"id": "writer", "owned_by": "someone"}


class OneReply:
    """A chat that opens its own connection for its one reply."""

    def __init__(self, settings: OpenAIEngineSettings) -> None:
        self._settings = settings

    async def reply(self, messages: list[Message]) -> Reply:
        async with new_session() as session:
            http = Http(session, self._settings.urls[0])
            sampling = Sampling(temperature=0.3, max_tokens=64)
            return await OpenAIChat(http, self._settings, sampling).reply(messages)


def told(tmp_path: Path, reply: str | Callable[..., str], message: str = "Fix", **more: str):
    """The statement and the endpoint whose model gives this reply."""
    talk = reply if callable(reply) else lambda _: reply
    with endpoint(talk, MODEL) as served:
        settings = writer_settings(f"{served.url}/v1")
        writer = Writer(lambda: OneReply(settings))  # type: ignore[arg-type] - a writer only asks for replies
        return written(tmp_path, message, writer=writer, **more), served


def prompt_of(served: Endpoint) -> str:
    (request,) = served.requests
    return request["messages"][0]["content"]


def test_model_writes_the_prose_from_fix_and_tests(tmp_path: Path) -> None:
    statement, served = told(tmp_path, f"```\n{ISSUE}\n```", "Sum all, see #3")
    assert statement.text == f"{ISSUE}\n\n{EXAMPLE}"
    assert statement.sources == ("writer", "tests")
    asked = prompt_of(served)
    assert "+    return sum(price for price in prices)" in asked
    assert "+def test_of_three():" in asked
    assert "Sum all, see #3" in asked
    assert "tests/test_prices.py::test_of_three" in asked


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (f"{ISSUE} It should\n\nreturn sum(price for\n    price in prices).", "repeats 'return sum("),
        (f"{ISSUE} Only test_of_three fails.", "names the hidden test tests/test_prices.py::test_of_three"),
    ],
)
def test_text_that_reveals_the_fix_or_the_tests_is_refused(tmp_path: Path, reply: str, reason: str) -> None:
    with pytest.raises(CommitRejected) as caught:
        told(tmp_path, reply)
    assert caught.value.reason is Reason.NO_STATEMENT
    assert reason in caught.value.detail


def test_text_with_a_name_of_the_fix_is_refused(tmp_path: Path) -> None:
    source = FIXED + "\n\ndef sum_of_everything(prices):\n    return sum(prices)\n"
    with pytest.raises(CommitRejected, match="names 'sum_of_everything' of the fix"):
        told(tmp_path, f"{ISSUE} A sum_of_everything would help.", **{"shop/prices.py": source})
    statement, _ = told(tmp_path / "fair", ISSUE, **{"shop/prices.py": source})
    assert "sum_of_everything" not in statement.text


def test_endpoint_with_several_models_needs_a_name() -> None:
    with endpoint(lambda _: "", MODEL, {"id": "other"}) as served:
        with pytest.raises(UsageError, match="serves writer, other: add #MODEL"):
            writer_settings(f"{served.url}/v1")
        assert writer_settings(f"{served.url}/v1#other").model_name == "other"
    with pytest.raises(EngineError, match="does not answer"):
        writer_settings(f"{served.url}/v1")


def test_writer_that_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="is no address: pass one such as"):
        writer_settings("gpt-x")


def test_empty_reply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommitRejected, match="the writer wrote nothing"):
        told(tmp_path, " ")
