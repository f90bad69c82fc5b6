"""A session: one rollout's calls to its chat, through an unmodified client.

    request -> in the record? its answer : purpose -> observer -> Chat.reply -> record

The rules that must not break: a call is sampled once however often it is asked; a client that goes away does
not stop it; when the session is closed, nothing of it runs any more.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.errors import PolicyError
from hone.policy.gateway.chat_request import ChatRequest, ClientReply, show, shown_message
from hone.policy.gateway.errors import GatewayError, Problem, defect, invalid, too_long
from hone.policy.gateway.purpose import Line, line_of, purpose_of
from hone.policy.gateway.record import Exchange, PendingCall, Record
from hone.policy.gateway.settings import SessionLimits
from hone.policy.messages import Key, key_of
from hone.policy.reply import CallKind, Chat, Reply
from hone.types import Message
from hone.utils import clock

Observer = Callable[[Exchange], Awaitable[None]]
_log = logging.getLogger(__name__)


class Limit(StrEnum):
    """Which of its limits a session ran into; it answers no new call after that."""

    CALLS = "calls"
    SAMPLED_TOKENS = "sampled_tokens"
    SECONDS = "seconds"


class Session:
    """See `hone.policy.gateway.Gateway.open`.

    `error` is what went wrong on Hone's side or in the model's context: the first EngineError, or exception
    of the observer, or ContextOverflow; a ContextOverflow is taken back when a later call of the main line is
    answered, since the client has shortened its history. `over` is set when the client cannot go on any more:
    with `ended`, with any other `error` than ContextOverflow, and when the session is closed.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        limits: SessionLimits,
        on_exchange: Observer | None = None,
        drop_after: Callable[[], int | None] | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)  # names the session to those who may see all of them
        self.key = secrets.token_urlsafe(32)
        self.chat = chat
        self.limits = limits
        self.exchanges: list[Exchange] = []
        self.ended: Limit | None = None
        self.error: Exception | None = None
        self.over = asyncio.Event()
        self.closed = False
        self.opened = clock.monotonic()
        self._drop_after = drop_after
        self._running: set[asyncio.Task[None]] = set()
        self.asked = 0  # calls that ever began, whatever became of them
        self.retries = 0  # requests for a reply that was there already, or on its way
        self._granted = 0  # those that are answered or on their way
        self._sampled = 0
        self._record = Record()
        self._main: Line | None = None
        self._main_said: set[Key] = set()  # the replies of the main line
        self._on_exchange = on_exchange
        self._unobserved: list[Exchange] = []  # answered calls of the main line, the latest last
        self._observation: asyncio.Task[None] | None = None
        self._observer_failed = False

    def next_drop(self) -> int | None:
        """Bytes after which the connection of the answer that goes out now is to be cut; None: it is not."""
        return None if self._drop_after is None else self._drop_after()

    @property
    def path(self) -> str:
        """The base path for OpenAI's clients; Anthropic's take it without the `/v1`."""
        return f"/s/{self.key}/v1"

    async def ask(self, asked: ChatRequest) -> tuple[Exchange, ClientReply]:
        """The reply to a request, sampled or from the record.

        Raises GatewayError. Being cancelled stops the waiting, not the sampling.
        """
        if self.closed:
            raise _closed()
        _require_question(asked.messages)
        begun = self._record.interrupted(asked.messages)
        if begun is not None:
            exchange, rest = begun
            exchange.retries += 1
            self.retries += 1
            return exchange, rest
        messages = self._record.recorded_messages(asked.messages)
        found = self._record.find(messages, asked.tools)
        if found is not None:
            found.retries += 1
            self.retries += 1
        call = found or self._start(messages, asked)
        exchange = call if isinstance(call, Exchange) else await asyncio.shield(call.answer)
        exchange.shown = shown = show(exchange.reply, stop=asked.stop, calls_allowed=asked.calls_allowed)
        self._record.conversations.add_alias(exchange.node, shown_message(shown))
        return exchange, shown

    def exchange(self, index: int) -> Exchange | None:
        """The exchange with this index, if there is one."""
        return self.exchanges[index] if 0 <= index < len(self.exchanges) else None

    def read(
        self, items: list[Any], convert: Callable[[Any, int], list[Message]], opening: Sequence[Message] = ()
    ) -> list[Message]:
        """Return `opening` and the messages that the items of a request mean; see `ConversationTree.read`."""
        return self._record.conversations.read(items, convert, opening)

    def measure(self, asked: ChatRequest) -> int:
        """Tokens of the prompt that this request would send; records nothing. Raises GatewayError."""
        _require_question(asked.messages)
        try:
            return self.chat.measure(asked.messages, tools=list(asked.tools) or None)
        except Exception as error:
            raise self._refusal(error) from error

    async def close(self) -> None:
        """Give up what is being sampled, and let the observer see the last exchange. May be called again."""
        self.closed = True
        self.over.set()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._observe()

    # --- one call

    def _start(self, messages: list[Message], asked: ChatRequest) -> PendingCall:
        """Begin to sample the reply. Raises GatewayError when the session is over."""
        self._require_budget()
        call = PendingCall(messages, asked.tools, asyncio.get_running_loop().create_future())
        self._record.pending.append(call)
        purpose = purpose_of(messages, asked.tools, self._main, lambda: self._holds_main_reply(messages))
        if purpose is CallKind.MAIN:
            self._main = line_of(messages, asked.tools)
        self.asked += 1
        self._granted += 1
        task = asyncio.create_task(self._answer(call, purpose), name=f"call of session {self.id}")
        self._running.add(task)
        task.add_done_callback(lambda _: self._done(task, call))
        return call

    async def _answer(self, call: PendingCall, purpose: CallKind) -> None:
        """Sample the reply and record it, or tell those who wait why there is none."""
        started = clock.monotonic()
        try:
            reply = await self._sample(call, purpose)
        except Exception as error:
            self._give_up(call, self._refusal(error))
            return
        index = len(self.exchanges)
        exchange = Exchange(
            index=index,
            tools=call.tools,
            reply=reply,
            purpose=purpose,
            started=started,
            ended=clock.monotonic(),
            node=self._record.add_reply(call, reply, index, purpose),
            retries=call.retries,
        )
        self._record.pending.remove(call)
        self._record.add_exchange(exchange)
        self.exchanges.append(exchange)
        self._sampled += reply.sampled_tokens
        if purpose is CallKind.MAIN:
            self._unobserved.append(exchange)
            self._main_said.add(exchange.node.key)
            if isinstance(self.error, ContextOverflow):
                self.error = None
        call.answer.set_result(exchange)

    async def _sample(self, call: PendingCall, purpose: CallKind) -> Reply:
        if purpose is CallKind.MAIN:
            await self._observe(call.messages)
            if self._observer_failed:
                raise GatewayError(Problem.OBSERVER, f"the session cannot go on: {self.error}")
        left = self.opened + self.limits.seconds - clock.monotonic() if self.limits.seconds else None
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                return await self.chat.reply(call.messages, tools=list(call.tools) or None, purpose=purpose)
        except TimeoutError:
            if deadline.expired():
                raise self._end(Limit.SECONDS) from None
            raise

    def _done(self, task: asyncio.Task[None], call: PendingCall) -> None:
        self._running.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            _log.error("session %s: a call ended unexpectedly", self.id, exc_info=defect)
        if not call.answer.done():  # it was cancelled, perhaps before it began
            self._give_up(call, _closed())

    def _give_up(self, call: PendingCall, refusal: GatewayError) -> None:
        self._granted -= 1
        self._record.pending.remove(call)
        call.answer.set_exception(refusal)
        call.answer.exception()  # mark it as retrieved: the caller may be gone

    def _refusal(self, error: Exception) -> GatewayError:
        """What to tell the client, and what to remember for the agent."""
        if isinstance(error, GatewayError):
            return error
        if isinstance(error, ContextOverflow):
            self.error = self.error or error
            return too_long(error.prompt_tokens, error.context_tokens)
        if isinstance(error, EngineError):
            self._fail(error)
            return GatewayError(Problem.ENGINE, f"the engine gave no reply: {error}")
        if isinstance(error, (PolicyError, ValueError)):
            return invalid(f"the model's chat template cannot render these messages: {error}", "messages")
        _log.error("session %s: a call failed unexpectedly", self.id, exc_info=error)
        self._fail(error)
        return defect()

    def _fail(self, error: Exception) -> None:
        if self.error is None or isinstance(self.error, ContextOverflow):
            self.error = error
        self.over.set()

    # --- limits

    def _require_budget(self) -> None:
        limits = self.limits
        if self.ended is not None:
            raise self._end(self.ended)
        if 0 < limits.calls <= self._granted:
            raise self._end(Limit.CALLS)
        if 0 < limits.sampled_tokens <= self._sampled:
            raise self._end(Limit.SAMPLED_TOKENS)
        if 0 < limits.seconds <= clock.monotonic() - self.opened:
            raise self._end(Limit.SECONDS)

    def _end(self, limit: Limit) -> GatewayError:
        self.ended = self.ended or limit
        self.over.set()
        most = getattr(self.limits, limit)
        return GatewayError(
            Problem.LIMIT, f"the session has reached its limit of {most:g} {limit}: it is over"
        )

    # --- the main line

    def _holds_main_reply(self, messages: Sequence[Message]) -> bool:
        return any(
            message["role"] == "assistant" and key_of(message) in self._main_said for message in messages
        )

    async def _observe(self, following: Sequence[Message] = ()) -> None:
        """Let the observer see what the main line's last calls led to, once, and wait until it has.

        `following` is the main line's next request. Being cancelled stops the waiting, not the observer.
        """
        exchanges, self._unobserved = self._unobserved, []
        for exchange in exchanges:
            exchange.followed_by = following
        if exchanges and self._on_exchange is not None:
            self._observation = asyncio.create_task(
                self._tell(self._on_exchange, exchanges, self._observation), name=f"observer of {self.id}"
            )
        if self._observation is not None:
            await asyncio.shield(self._observation)

    async def _tell(
        self, observer: Observer, exchanges: Sequence[Exchange], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        try:
            for exchange in exchanges:
                await observer(exchange)
        except Exception as error:
            self._observer_failed = True
            self._fail(error)


def _require_question(messages: Sequence[Message]) -> None:
    if not messages:
        raise invalid("there are no messages", "messages")
    if messages[-1]["role"] == "assistant":
        raise invalid("the last message must not be the assistant's: replies cannot be prefilled", "messages")


def _closed() -> GatewayError:
    return GatewayError(Problem.NOT_FOUND, "the session is closed")
