"""The client for programs without asyncio: the same methods, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from dovecote.client.answers import ApprovalAnswer, ConversationEvent, JobAnswer, StartedTurn, TurnResult
from dovecote.client.asynchronous import PATIENCE_SECONDS, AsyncDovecote

Value = TypeVar("Value")


class Dovecote:
    """A client of one gateway with one API key. Use it as a context manager, or call `close`.

    It behaves as AsyncDovecote does, and may be used from several threads.
    """

    def __init__(self, url: str, key: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dovecote-client", daemon=True)
        self._thread.start()
        self._client = AsyncDovecote(url, key, patience=patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; turns and jobs go on."""
        if self._loop.is_closed():
            return
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt of the caller ends the request too
            raise

    def start_turn(
        self,
        text: str,
        *,
        agent: str = "default",
        conversation: str | None = None,
        webhook: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> StartedTurn:
        """Start a turn of an agent. The same `key` again is the same turn, also from another process."""
        return self._run(
            self._client.start_turn(text, agent=agent, conversation=conversation, webhook=webhook, key=key)
        )

    def turn(self, turn: str) -> TurnResult:
        """Return the present state of a turn."""
        return self._run(self._client.turn(turn))

    def result(self, turn: str, *, timeout: float | None = None) -> TurnResult:
        """Wait until a turn has ended and return it; raises TimeoutError after `timeout` seconds."""
        return self._run(_within(timeout, self._client.result(turn)))

    def run(
        self,
        text: str,
        *,
        agent: str = "default",
        conversation: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> TurnResult:
        """Start a turn and wait until it has ended; raises TimeoutError after `timeout` seconds."""
        return self._run(
            _within(timeout, self._client.run(text, agent=agent, conversation=conversation, key=key))
        )

    def cancel(self, turn: str) -> None:
        """Cancel a turn with its model call and running command."""
        self._run(self._client.cancel(turn))

    def events(
        self, conversation: str, *, after: int | None = None, deltas: bool = True, live: bool = True
    ) -> Generator[ConversationEvent]:
        """Yield the events of a conversation; see AsyncDovecote.events."""
        stream = self._client.events(conversation, after=after, deltas=deltas, live=live)
        try:
            while (event := self._run(_next(stream))) is not None:
                yield event
        finally:
            self._run(_close(stream))

    def jobs(self, *, state: str | None = None) -> list[JobAnswer]:
        """Return the account's background jobs, of one state if it is given."""
        return self._run(self._client.jobs(state=state))

    def job(self, job: str) -> JobAnswer:
        """Return the present state of a job."""
        return self._run(self._client.job(job))

    def job_output(self, job: str) -> str:
        """Return the output of a job so far."""
        return self._run(self._client.job_output(job))

    def stop_job(self, job: str) -> None:
        """Stop a job with its processes."""
        self._run(self._client.stop_job(job))

    def approvals(self, *, state: str = "pending") -> list[ApprovalAnswer]:
        """Return the tool calls and questions that wait for a person, or those of another state."""
        return self._run(self._client.approvals(state=state))

    def approve(self, approval: str, *, comment: str | None = None) -> ApprovalAnswer:
        """Approve a tool call; RequestRefused with status 409 if it was denied before."""
        return self._run(self._client.approve(approval, comment=comment))

    def deny(self, approval: str, *, comment: str | None = None) -> ApprovalAnswer:
        """Deny a tool call; RequestRefused with status 409 if it was approved before."""
        return self._run(self._client.deny(approval, comment=comment))

    def answer(self, approval: str, text: str) -> ApprovalAnswer:
        """Answer a question of the agent."""
        return self._run(self._client.answer(approval, text))


async def _within(timeout: float | None, work: Coroutine[Any, Any, Value]) -> Value:
    async with asyncio.timeout(timeout):
        return await work


async def _next(stream: Any) -> ConversationEvent | None:
    found: ConversationEvent | None = await anext(stream, None)
    return found


async def _close(stream: Any) -> None:
    await stream.aclose()
