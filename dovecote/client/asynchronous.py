"""The client for asyncio."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self

from dovecote.client.answers import ApprovalAnswer, ConversationEvent, JobAnswer, StartedTurn, TurnResult
from dovecote.client.requests import Requests
from dovecote.client.streams import ResumableStream

PATIENCE_SECONDS = 120.0
"""How long a request and a stream wait for a gateway that does not answer."""

_POLL_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)


class AsyncDovecote:
    """A client of one gateway with one API key. Use it as a context manager, or call `aclose`.

    Requests and streams go on when the gateway restarts. They raise RequestRefused if the gateway refuses,
    and GatewayAway if none answers for `patience` seconds.
    """

    def __init__(self, url: str, key: str, *, patience: float = PATIENCE_SECONDS) -> None:
        self._requests = Requests(url, key, patience=patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; turns and jobs go on."""
        await self._requests.aclose()

    async def start_turn(
        self,
        text: str,
        *,
        agent: str = "default",
        conversation: str | None = None,
        webhook: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> StartedTurn:
        """Start a turn of an agent. The same `key` again is the same turn, also from another process."""
        body: dict[str, Any] = {"input": text}
        body |= {"conversation": conversation} if conversation is not None else {}
        body |= {"webhook": dict(webhook)} if webhook is not None else {}
        return StartedTurn.from_fields(await self._post("agents", agent, "turns", body=body, key=key))

    async def turn(self, turn: str) -> TurnResult:
        """Return the present state of a turn."""
        return TurnResult.from_fields(await self._requests.send("GET", "status", turn))

    async def result(self, turn: str) -> TurnResult:
        """Wait until a turn has ended and return it; bound the wait with `asyncio.timeout`."""
        attempt = 0
        while not (found := await self.turn(turn)).has_ended:
            await asyncio.sleep(_POLL_SECONDS[min(attempt, len(_POLL_SECONDS) - 1)])
            attempt += 1
        return found

    async def run(
        self, text: str, *, agent: str = "default", conversation: str | None = None, key: str | None = None
    ) -> TurnResult:
        """Start a turn and wait until it has ended."""
        started = await self.start_turn(text, agent=agent, conversation=conversation, key=key)
        return await self.result(started.id)

    async def cancel(self, turn: str) -> None:
        """Cancel a turn with its model call and running command."""
        await self._post("turns", turn, "cancel")

    def events(
        self, conversation: str, *, after: int | None = None, deltas: bool = True, live: bool = True
    ) -> AsyncGenerator[ConversationEvent]:
        """Yield the events of a conversation after a `seq`, each once, for ever.

        0 starts at the first stored event; without `after` only new events are yielded. With `live` False
        the stream ends at the newest event. The stream continues where it was after a disconnection.
        """
        return ResumableStream(
            self._requests, conversation, after=after, deltas=deltas, ends_live=not live
        ).events()

    async def jobs(self, *, state: str | None = None) -> list[JobAnswer]:
        """Return the account's background jobs, of one state if it is given."""
        query = {"state": state} if state is not None else {}
        return [JobAnswer.from_fields(one) for one in await self._list("jobs", query)]

    async def job(self, job: str) -> JobAnswer:
        """Return the present state of a job."""
        return JobAnswer.from_fields(await self._requests.send("GET", "jobs", job))

    async def job_output(self, job: str) -> str:
        """Return the output of a job so far."""
        return str((await self._requests.send("GET", "jobs", job, "logs")).get("output") or "")

    async def stop_job(self, job: str) -> None:
        """Stop a job with its processes."""
        await self._post("jobs", job, "stop")

    async def approvals(self, *, state: str = "pending") -> list[ApprovalAnswer]:
        """Return the tool calls and questions that wait for a person, or those of another state."""
        return [ApprovalAnswer.from_fields(one) for one in await self._list("approvals", {"state": state})]

    async def approve(self, approval: str, *, comment: str | None = None) -> ApprovalAnswer:
        """Approve a tool call; RequestRefused with status 409 if it was denied before."""
        return await self._decide(approval, {"decision": "approve"}, comment)

    async def deny(self, approval: str, *, comment: str | None = None) -> ApprovalAnswer:
        """Deny a tool call; RequestRefused with status 409 if it was approved before."""
        return await self._decide(approval, {"decision": "deny"}, comment)

    async def answer(self, approval: str, text: str) -> ApprovalAnswer:
        """Answer a question of the agent."""
        return await self._decide(approval, {"answer": text}, None)

    async def _decide(self, approval: str, body: dict[str, Any], comment: str | None) -> ApprovalAnswer:
        body |= {"comment": comment} if comment is not None else {}
        return ApprovalAnswer.from_fields(await self._post("approvals", approval, body=body))

    async def _post(self, *path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Any:
        return await self._requests.send("POST", *path, body=body or {}, key=key or secrets.token_hex(16))

    async def _list(self, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self._requests.send("GET", path, query={"limit": "200", **query, **cursor})
            items += page["items"]
            if not page.get("next"):
                return items
            cursor = {"cursor": str(page["next"])}
