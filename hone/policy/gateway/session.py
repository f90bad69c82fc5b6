"""A session: the calls of one rollout to its chat, through an unmodified client.

    request -> in the record? its reply : purpose -> observer -> Chat.reply -> record

Invariants: a call is sampled once however often it is requested; sampling continues when the client
disconnects; a closed session runs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from msgspec import Raw

from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.errors import PolicyError
from hone.policy.gateway.chat_request import ChatRequest, ClientReply, client_reply
from hone.policy.gateway.errors import GatewayError, Problem, defect, invalid
from hone.policy.gateway.purpose import Line, line_of, purpose_of
from hone.policy.gateway.record import Answer, Exchange, PendingCall, Record
from hone.policy.gateway.settings import SessionLimits
from hone.policy.messages import key_of
from hone.policy.reply import CallKind, Chat, Reply
from hone.policy.workers import run_by_size
from hone.types import Message
from hone.utils import clock

Observer = Callable[[Exchange], Awaitable[None]]
REQUESTS_MAX = 64  # of one session at a time
MESSAGES_MAX = 10_000  # of one request
_MESSAGE_COST = 32  # characters that take as long to encode as a message takes to find
_FIELD_COST = 1 / 4  # the same of a byte of a body that is read
CHARACTERS_PER_TOKEN = 32  # on average; texts with more (long runs of spaces) do not fill a context
_log = logging.getLogger(__name__)


class Limit(StrEnum):
    """The limit that a session reached; it answers no new call after that."""

    CALLS = "calls"
    SAMPLED_TOKENS = "sampled_tokens"
    SECONDS = "seconds"


class Session:
    """One client's conversation with the policy; `Gateway.open` makes it.

    `error` is the first EngineError, exception of the observer, or ContextOverflow. A later reply on the main
    line clears a ContextOverflow, since the client has shortened its history. `over` is set when the client
    cannot continue: with `ended`, with any `error` but ContextOverflow, and when the session is closed.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        limits: SessionLimits,
        on_exchange: Observer | None = None,
        drop_after: Callable[[], int | None] | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)  # not secret, unlike the key
        self.key = secrets.token_urlsafe(32)
        self.chat = chat
        self.limits = limits
        self.ended: Limit | None = None
        self.error: Exception | None = None
        self.over = asyncio.Event()
        self.closed = False
        self.opened = clock.monotonic()
        self.calls_started = 0  # failed ones included
        self.retries = 0  # requests for a reply that existed or was being sampled
        self._drop_after = drop_after
        self._running: set[asyncio.Task[None]] = set()
        self._record = Record()
        self._main: Line | None = None
        self._on_exchange = on_exchange
        self._unobserved: list[Exchange] = []  # answered calls of the main line, the latest last
        self._observation: asyncio.Task[None] | None = None
        self._observer_failed = False
        self._record_lock = asyncio.Lock()  # a thread may be reading or changing the record
        self._measuring = asyncio.Lock()  # one at a time occupies a thread
        self._requests = 0  # being answered

    @property
    def path(self) -> str:
        """The base path for OpenAI's clients; Anthropic's and Google's take it without the `/v1`."""
        return f"/s/{self.key}/v1"

    @property
    def exchanges(self) -> list[Exchange]:
        return self._record.exchanges

    @property
    def sampled_tokens(self) -> int:
        return sum(exchange.reply.sampled_tokens for exchange in self.exchanges)

    def exchange(self, index: int) -> Exchange | None:
        return self.exchanges[index] if 0 <= index < len(self.exchanges) else None

    def next_drop(self) -> int | None:
        """Return the bytes of the next response after which to cut the connection; None: do not cut it."""
        return None if self._drop_after is None else self._drop_after()

    async def ask(self, request: ChatRequest) -> Answer:
        """Return the reply to a request, sampled or from the record.

        Raises GatewayError. Cancelling stops the waiting, not the sampling.
        """
        if self.closed:
            raise _closed()
        _require_question(request.messages)
        if overflow := self._overflow(request):
            raise self._refusal(overflow)
        with self._admitted():
            return await self._answer_to(request)

    async def _answer_to(self, request: ChatRequest) -> Answer:
        async with self._record_lock:
            begun, messages, found = await run_by_size(
                len(request.messages) * _MESSAGE_COST, self._look_up, request
            )
            if self.closed:
                raise _closed()
            if begun is not None or found is not None:
                self.retries += 1
            call = None if begun is not None else found or self._start(messages, request)
        if begun is not None:
            exchange, shown = begun
            exchange.retries += 1
            return Answer(session_id=self.id, request=request, exchange=exchange, shown=shown)
        assert call is not None
        if found is not None:
            found.retries += 1
        exchange = call if isinstance(call, Exchange) else await asyncio.shield(call.answer)
        shown = client_reply(exchange.reply, stop=request.stop, calls_allowed=request.calls_allowed)
        exchange.shown = shown
        async with self._record_lock:
            self._record.conversations.add_alias(exchange.node, shown.to_message())
        return Answer(session_id=self.id, request=request, exchange=exchange, shown=shown)

    def _look_up(
        self, request: ChatRequest
    ) -> tuple[tuple[Exchange, ClientReply] | None, list[Message], PendingCall | Exchange | None]:
        """Return the interrupted reply that a request continues, its messages, and the call it repeats."""
        if begun := self._record.interrupted(request.messages):
            return begun, request.messages, None
        messages = self._record.recorded_messages(request.messages)
        return None, messages, self._record.find(messages, request.tools)

    async def parse(self, size: int, parse: Callable[[], ChatRequest]) -> ChatRequest:
        """Return the result of `parse`, which calls `read`; in a thread for a body of many bytes (`size`)."""
        with self._admitted():
            async with self._record_lock:
                return await run_by_size(int(size * _FIELD_COST), parse)

    @contextmanager
    def _admitted(self) -> Generator[None]:
        """Count a request while the block runs. Raises GatewayError beyond REQUESTS_MAX at a time."""
        if self._requests >= REQUESTS_MAX:
            raise GatewayError(
                Problem.BUSY, f"{REQUESTS_MAX} requests of this session are running: wait for one to end"
            )
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def read(
        self, items: list[Raw], convert: Callable[[Raw, int], list[Message]], opening: Sequence[Message] = ()
    ) -> list[Message]:
        """Return `opening` and the messages of a request's items; see `ConversationTree.read`.

        Call it from `parse` only. Raises GatewayError for more than MESSAGES_MAX items.
        """
        _require_few(items)
        return self._record.conversations.read(items, convert, opening)

    async def measure(self, request: ChatRequest) -> int:
        """Return the length of the request's prompt in tokens; records nothing. Raises GatewayError."""
        _require_question(request.messages)
        if overflow := self._overflow(request):
            raise _too_long(overflow)
        size, tools = request.characters, list(request.tools) or None
        try:
            with self._admitted():
                async with self._measuring:
                    return await run_by_size(size, self.chat.measure, request.messages, tools=tools)
        except Exception as error:
            raise self._refusal(error) from error

    async def close(self) -> None:
        """Cancel running calls and let the observer see the last exchange. May be called again."""
        self.closed = True
        self.over.set()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._observe()

    # --- one call

    def _start(self, messages: list[Message], request: ChatRequest) -> PendingCall:
        """Begin to sample the reply. Raises GatewayError when the session is over."""
        self._require_budget()
        answer = asyncio.get_running_loop().create_future()
        call = PendingCall(messages=messages, tools=request.tools, answer=answer, started=clock.monotonic())
        self._record.pending.append(call)
        purpose = purpose_of(messages, request.tools, self._main, lambda: self._holds_main_reply(messages))
        if purpose is CallKind.MAIN:
            self._main = line_of(messages, request.tools)
        self.calls_started += 1
        task = asyncio.create_task(self._answer(call, purpose), name=f"call of session {self.id}")
        self._running.add(task)
        task.add_done_callback(lambda _: self._done(task, call))
        return call

    async def _answer(self, call: PendingCall, purpose: CallKind) -> None:
        """Sample the reply and record it, or fail the call."""
        try:
            reply = await self._sample(call, purpose)
        except Exception as error:
            self._fail_call(call, self._refusal(error))
            return
        async with self._record_lock:
            exchange = self._record.add(call, reply, purpose)
        if purpose is CallKind.MAIN:
            self._unobserved.append(exchange)
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
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("session %s: a call ended unexpectedly", self.id, exc_info=error)
        if not call.answer.done():  # it was cancelled, perhaps before it began
            self._fail_call(call, _closed())

    def _fail_call(self, call: PendingCall, refusal: GatewayError) -> None:
        self._record.pending.remove(call)
        call.answer.set_exception(refusal)
        call.answer.exception()  # mark it as retrieved: the caller may be gone

    def _refusal(self, error: Exception) -> GatewayError:
        """Return the client's error for an exception, and keep the exception for the agent."""
        if isinstance(error, GatewayError):
            return error
        if isinstance(error, ContextOverflow):
            self.error = self.error or error
            return _too_long(error)
        if isinstance(error, EngineError):
            self._fail(error)
            return GatewayError(Problem.ENGINE, f"the engine gave no reply: {error}")
        if isinstance(error, (PolicyError, ValueError)):
            return invalid(f"the model's chat template cannot render these messages: {error}", "messages")
        _log.error("session %s: a call failed unexpectedly", self.id, exc_info=error)
        self._fail(error)
        return defect()

    def _overflow(self, request: ChatRequest) -> ContextOverflow | None:
        """Return the error of messages that fit no context, however they are encoded; None for all others."""
        context = max(self.chat.max_prompt_tokens, 1 << 12)
        needed = request.characters // CHARACTERS_PER_TOKEN + 1
        return ContextOverflow(needed, context) if needed > context else None

    def _fail(self, error: Exception) -> None:
        if self.error is None or isinstance(self.error, ContextOverflow):
            self.error = error
        self.over.set()

    # --- limits

    def _require_budget(self) -> None:
        limits = self.limits
        if self.ended is not None:
            raise self._end(self.ended)
        if 0 < limits.calls <= len(self.exchanges) + len(self._record.pending):
            raise self._end(Limit.CALLS)
        if 0 < limits.sampled_tokens <= self.sampled_tokens:
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
        main = {exchange.node.key for exchange in self.exchanges if exchange.purpose is CallKind.MAIN}
        return any(message["role"] == "assistant" and key_of(message) in main for message in messages)

    async def _observe(self, following: Sequence[Message] = ()) -> None:
        """Show the observer each new exchange of the main line once, and wait for it.

        `following` is the main line's next request. Cancelling stops the waiting, not the observer.
        """
        exchanges, self._unobserved = self._unobserved, []
        for exchange in exchanges:
            exchange.followed_by = following
        if exchanges and self._on_exchange is not None:
            self._observation = asyncio.create_task(
                self._call_observer(self._on_exchange, exchanges, self._observation),
                name=f"observer of {self.id}",
            )
        if self._observation is not None:
            await asyncio.shield(self._observation)

    async def _call_observer(
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
    _require_few(messages)
    if messages[-1]["role"] == "assistant":
        raise invalid("the last message must not be the assistant's: replies cannot be prefilled", "messages")


def _require_few(items: Sequence[object]) -> None:
    if len(items) > MESSAGES_MAX:
        raise invalid(f"there are more than {MESSAGES_MAX:,} messages: shorten the history", "messages")


def _too_long(error: ContextOverflow) -> GatewayError:
    # Clients recognise these words, and shorten their history.
    message = (
        f"This model's maximum context length is {error.context_tokens} tokens, and the messages "
        f"have {error.prompt_tokens}: shorten them."
    )
    sizes = {"prompt_tokens": error.prompt_tokens, "context_tokens": error.context_tokens}
    return GatewayError(Problem.TOO_LONG, message, param="messages", **sizes)


def _closed() -> GatewayError:
    return GatewayError(Problem.NOT_FOUND, "the session is closed")
