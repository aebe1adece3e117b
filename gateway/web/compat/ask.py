"""Asking an agent over HTTP and hearing the answer in the same request, whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from delivery.database.engine import Unavailable
from delivery.errors import DeliveryError
from gateway.conversations.submission import Submission
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.api import turns
from gateway.web.http import attachments
from gateway.web.http.attachments import Attached, BadAttachment
from gateway.web.http.problems import Problem, invalid
from gateway.web.http.route import Call, Shown
from gateway.web.stream.frames import dumped
from gateway.web.stream.handlers import READERS
from gateway.web.stream.send_buffer import SLOW_AFTER
from gateway.web.stream.turn_events import Ended, Heard, Listening, hear, pulsed
from sandbox.config import Problem as Fault

PATIENCE = 600.0
"""Seconds that an answer is waited for which is not streamed."""

CUT = "the gateway stops, or the key was revoked"

ONCE = {"x-should-retry": "false"}
"""Tells OpenAI's clients that asking again would ask twice: the turn is queued already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A turn that was asked for: `after` is a position of its conversation's stream before it."""

    turn: str
    conversation: str
    agent: str
    after: int
    created: int

    def problem(self, status: int, detail: str) -> Problem:
        """Return a problem that leads to the turn, and that a client does not answer by asking again."""
        about = {"turnId": self.turn, "conversationId": self.conversation}
        return Problem(status, f"{detail}; the turn is at /status/{self.turn}", headers=ONCE, members=about)


class TokensUsed(Shown):
    """What the model counted, as chat completions tell it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


def now() -> int:
    """Return the moment as their shapes have it."""
    return int(time.time())


def refuse_key(call: Call[Any, Any]) -> None:
    """Raise a Problem for a stream with an Idempotency-Key: nothing was done yet."""
    if call.idempotency_key is not None:
        raise Problem(422, "a stream is not answered twice: leave the Idempotency-Key out")


async def ask(
    call: Call[Any, Any],
    *,
    agent: str | None,
    conversation: str | None,
    text: str,
    pictures: Sequence[Attached],
    at: str,
    stream: bool,
) -> Asked:
    """Queue a turn; raises a Problem. `at` is where in the request a picture stands."""
    if stream:
        refuse_key(call)
    after = await _position(call, conversation)
    try:
        kept = await attachments.keep_all(call.core, call.account, pictures)
    except BadAttachment as error:
        raise invalid([Fault(pointer=at, detail=error.detail)]) from None
    submission = Submission(
        account=call.account,
        text=text,
        asker=call.principal.key,
        agent=agent,
        conversation=conversation,
        key=call.idempotency_key,
        attachments=kept,
        notify=True,
    )
    taken = await turns.submit(call, submission)
    return Asked(
        turn=taken.turnId, conversation=taken.conversationId, agent=agent or "", after=after, created=now()
    )


async def _position(call: Call[Any, Any], conversation: str | None) -> int:
    if conversation is None or call.idempotency_key is not None:
        return 0  # with a key the turn may have been asked for, and have ended, before
    async with call.surface.database.read() as connection:
        known = await conversations.find(connection, call.account, conversation)
    try:
        return (await call.core.stream.extent(known.id)).last_seq if known else 0
    except DeliveryError:
        raise Problem(503, "the broker does not answer; try again", headers={"Retry-After": "2"}) from None


@asynccontextmanager
async def listening(
    call: Call[Any, Any], given: AsyncGenerator[Heard, None]
) -> AsyncGenerator[AsyncGenerator[Heard | None, None]]:
    """Hear while the key is valid and the gateway runs; None comes when nothing else does."""
    with call.request.app[READERS].admitted(call.principal) as reader:
        async with aclosing(pulsed(given, reader.ended)) as heard:
            yield heard


def hearing(call: Call[Any, Any], asked: Asked) -> AsyncGenerator[Heard, None]:
    """Return what a turn says that was just asked for."""
    return hear(call.core.stream, asked.conversation, Listening(turn=asked.turn), after=asked.after)


async def heard_out(call: Call[Any, Any], asked: Asked, take: Callable[[Heard], None]) -> Ended:
    """Hear a turn to its end and return that; raises a Problem when it does not come."""
    try:
        async with asyncio.timeout(PATIENCE), listening(call, hearing(call, asked)) as heard:
            async for one in heard:
                if isinstance(one, Ended):
                    return one
                if one is not None:
                    take(one)
    except TimeoutError:
        raise asked.problem(504, f"no answer within {PATIENCE:g} seconds") from None
    except DeliveryError:
        raise asked.problem(503, "the broker does not answer") from None
    raise asked.problem(503, CUT)


async def ended(call: Call[Any, Any], asked: Asked, turn: str) -> Turn:
    """Return a turn that has completed; raises a Problem for one that ended otherwise."""
    async with call.surface.database.read() as connection:
        row = await store.find(connection, call.account, turn)
    if row is None:
        raise asked.problem(424, "the turn was deleted")
    if row.state is not TurnState.COMPLETED:
        raise asked.problem(424, f"the turn {row.state}: {row.error or row.cancel_why or 'no reason'}")
    return row


def tokens(turn: Turn) -> TokensUsed:
    """Return what a turn used."""
    usage = turn.usage or {}
    read, written = int(usage.get("input_tokens", 0)), int(usage.get("output_tokens", 0))
    return TokensUsed(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


class Left(Exception):
    """The client went away, or takes nothing; the turn goes on without it."""


class Sent:
    """Server-sent events as their clients read them: JSON in `data:` lines."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def tell(self, shape: dict[str, Any], *, event: str | None = None) -> None:
        """Send one event; raises Left."""
        name = f"event: {event}\n".encode() if event else b""
        await self._write(b"%bdata: %b\n\n" % (name, dumped(shape)))

    async def pulse(self) -> None:
        """Show that the stream lives; raises Left."""
        await self._write(b": \n\n")

    async def done(self) -> None:
        """Send the mark of a stream's end; raises Left."""
        await self._write(b"data: [DONE]\n\n")

    async def _write(self, raw: bytes) -> None:
        try:
            async with asyncio.timeout(2 * SLOW_AFTER):
                await self._response.write(raw)
        except (ConnectionError, TimeoutError):
            raise Left from None


async def streaming(
    request: web.Request,
    tell: Callable[[Sent], Awaitable[None]],
    failed: Callable[[Problem], dict[str, Any]],
) -> web.StreamResponse:
    """Answer with what `tell` sends; what goes wrong once it has begun is its last event."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
    )
    await response.prepare(request)
    sent = Sent(response)
    with suppress(Left):
        try:
            await tell(sent)
        except Problem as problem:
            await sent.tell(failed(problem))
        except (DeliveryError, Unavailable):
            await sent.tell(failed(Problem(503, "the broker or the database does not answer")))
    return response
