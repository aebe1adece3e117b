"""The tools of the gateway's own MCP server. Each needs a scope of the key, and acts in its account only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictStr, ValidationError

from delivery.errors import DeliveryError
from gateway.config.sign_in_settings import KeyScope
from gateway.records.fields import Name
from gateway.records.input_problems import to_problems
from gateway.store.conversations import listing, messages
from gateway.store.conversations.messages import MessageRole
from gateway.store.turns import turns as turn_store
from gateway.web.api import approvals, jobs, turns
from gateway.web.api.conversations import require_conversation
from gateway.web.compat.ask import ask, open_events, turn_deleted, turn_events
from gateway.web.http.problems import HttpProblem
from gateway.web.http.route import ApiCall, NoContent, RequestModel, ResponseModel
from gateway.web.stream.turn_events import ApprovalNeeded, TurnEnded

DEFAULT_AGENT = "default"
MAX_WAIT = 300.0
MAX_SEARCHED = 20
"""The last active conversations whose messages a search without a conversation reads."""
MAX_SEARCHED_MESSAGES = 200
"""The last messages of each conversation that a search reads."""
_CONTEXT = 200
"""Characters shown on each side of a found text."""

Id = Annotated[StrictStr, Field(min_length=1, max_length=200)]


class AskArguments(RequestModel):
    """Arguments of `ask`."""

    text: turns.Text = Field(description="what to ask")
    agent: Id | None = Field(default=None, description="the agent's name or id; `default` if left out")
    conversation: Name | None = Field(
        default=None, description="a conversation's id, or a name of your own; a new one if left out"
    )
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT)] = Field(
        default=45, description="seconds to wait for the answer; it is not lost after that"
    )


class SendArguments(RequestModel):
    """Arguments of `send`."""

    conversation: Id = Field(description="the conversation's id or name")
    text: turns.Text = Field(description="the message")


class StatusArguments(RequestModel):
    """Arguments of `job_status`."""

    id: Id = Field(description="a resultId or turnId")


class LogArguments(RequestModel):
    """Arguments of `job_logs`."""

    resultId: Id = Field(description="the job's resultId")


class ApproveArguments(RequestModel):
    """Arguments of `approve`."""

    approval: Id = Field(description="the approval's id")
    decision: Literal["approve", "deny"]
    comment: Annotated[StrictStr, Field(max_length=2000)] = Field(
        default="", description="the message for the agent"
    )


class SearchArguments(RequestModel):
    """Arguments of `search`."""

    query: Annotated[StrictStr, Field(min_length=1, max_length=200)] = Field(
        description="a text to find; upper and lower case are the same"
    )
    conversation: Id | None = Field(default=None, description="only this conversation, by id or name")
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class AskResult(ResponseModel):
    """What `ask` returns: the turn, its answer once it has one, and approvals that it waits for."""

    turnId: str
    conversationId: str
    state: str
    output: str | None = None
    error: str | None = None
    approvals: list[str] = Field(default_factory=list)


class FoundMessage(ResponseModel):
    """A message that contains the searched text, with what is around it."""

    conversation: str
    title: str | None
    message: str
    role: MessageRole
    text: str
    created_at: str


class SearchResult(ResponseModel):
    """What `search` returns, newest first in each conversation."""

    items: list[FoundMessage]


ToolHandler = Callable[[ApiCall[Any, Any], Any], Awaitable[BaseModel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool: its description, the scope that a key needs, its arguments, and what it does."""

    description: str
    scope: KeyScope
    arguments: type[RequestModel]
    handler: ToolHandler
    changes: bool = False

    def describe(self, name: str) -> dict[str, Any]:
        """Return the tool as the protocol describes it."""
        return {
            "name": name,
            "description": self.description,
            "inputSchema": self.arguments.model_json_schema(by_alias=True),
            "annotations": {"readOnlyHint": not self.changes, "openWorldHint": self.changes},
        }

    async def call(self, call: ApiCall[Any, Any], args: Mapping[str, Any]) -> BaseModel:
        """Check the arguments and run; raises HttpProblem, pydantic.ValidationError."""
        return await self.handler(call, self.arguments.model_validate(dict(args)))


async def _ask(call: ApiCall[Any, Any], args: AskArguments) -> AskResult:
    agent = args.agent or (None if args.conversation else DEFAULT_AGENT)
    submitted = await ask(
        call, agent=agent, conversation=args.conversation, text=args.text, files=(), pointer="/text"
    )
    waiting_for: list[str] = []
    try:
        async with (
            asyncio.timeout(args.wait),
            open_events(call, turn_events(call, submitted), turn=submitted.turn) as events,
        ):
            async for event in events:
                if isinstance(event, ApprovalNeeded):
                    waiting_for.append(event.approval)
                    break
                if isinstance(event, TurnEnded):
                    break
    except TimeoutError:
        pass  # the turn continues
    except DeliveryError:
        raise submitted.problem(503, "the broker does not answer") from None
    async with call.context.database.read() as connection:
        turn = await turn_store.get(connection, call.account, submitted.turn)
    if turn is None:
        raise turn_deleted(submitted.turn)
    return AskResult(
        turnId=turn.id,
        conversationId=turn.conversation,
        state=str(turn.state),
        output=turn.output,
        error=turn.error,
        approvals=waiting_for,
    )


async def _send(call: ApiCall[Any, Any], args: SendArguments) -> BaseModel:
    body = turns.MessageCreate(text=args.text, literal=True)
    return await turns.send_message(_with(call, args.conversation, body))


async def _status(call: ApiCall[Any, Any], args: StatusArguments) -> BaseModel:
    return await turns.get_status(_with(call, args.id, NoContent()))


async def _logs(call: ApiCall[Any, Any], args: LogArguments) -> BaseModel:
    return await jobs.get_log(_with(call, args.resultId, NoContent()))


async def _approve(call: ApiCall[Any, Any], args: ApproveArguments) -> BaseModel:
    body = approvals.ApprovalDecisionRequest(decision=args.decision, comment=args.comment)
    return await approvals.decide(_with(call, args.approval, body))


async def _search(call: ApiCall[Any, Any], args: SearchArguments) -> SearchResult:
    found: list[FoundMessage] = []
    async with call.context.database.read() as connection:
        if args.conversation is not None:
            only = await require_conversation(connection, call.account, args.conversation)
            searched = [(only.id, only.title)]
        else:
            recent = await listing.list_by_activity(
                connection, call.account, listing.ConversationFilter(), after=None, limit=MAX_SEARCHED
            )
            searched = [(one.id, one.conversation.title) for one in recent]
        for conversation, title in searched:
            rows = await messages.list_messages(connection, conversation, limit=MAX_SEARCHED_MESSAGES)
            for row in reversed(rows):
                shown = _excerpt(row.text, args.query)
                if shown is not None:
                    found.append(
                        FoundMessage(
                            conversation=conversation,
                            title=title,
                            message=row.id,
                            role=row.role,
                            text=shown,
                            created_at=row.created_at.isoformat(),
                        )
                    )
            if len(found) >= args.limit:
                break
    return SearchResult(items=found[: args.limit])


def _excerpt(text: str, query: str) -> str | None:
    """Return the found text with what is around it, or None."""
    at = text.lower().find(query.lower())
    if at < 0:
        return None
    return text[max(0, at - _CONTEXT) : at + len(query) + _CONTEXT]


def _with(call: ApiCall[Any, Any], identity: str, body: BaseModel) -> ApiCall[Any, Any]:
    """Return the call that another route would get for this id and body."""
    if "\0" in identity:
        raise HttpProblem(404, "there is nothing with this id")
    return replace(call, path={"id": identity}, body=body, query=NoContent())


TOOLS: Mapping[str, ServedTool] = {
    "ask": ServedTool(
        description=(
            "Ask an agent and wait for its answer. A state other than `completed` means that there is none "
            "yet: call job_status with the turnId later. `waiting` means that a person must decide the "
            "`approvals` first."
        ),
        scope="chat",
        arguments=AskArguments,
        handler=_ask,
        changes=True,
    ),
    "send": ServedTool(
        description="Send a message to a conversation without waiting for the answer.",
        scope="chat",
        arguments=SendArguments,
        handler=_send,
        changes=True,
    ),
    "job_status": ServedTool(
        description="Show the state and the result of a background job or of a turn.",
        scope="read",
        arguments=StatusArguments,
        handler=_status,
    ),
    "job_logs": ServedTool(
        description="Show the last output of a background job, also while it runs.",
        scope="read",
        arguments=LogArguments,
        handler=_logs,
    ),
    "approve": ServedTool(
        description="Approve or deny a tool call that waits for a person's decision.",
        scope="chat",
        arguments=ApproveArguments,
        handler=_approve,
        changes=True,
    ),
    "search": ServedTool(
        description=(
            f"Find a text in the last {MAX_SEARCHED_MESSAGES} messages of a conversation, or of the "
            f"{MAX_SEARCHED} conversations that were active last."
        ),
        scope="read",
        arguments=SearchArguments,
        handler=_search,
    ),
}


def argument_problem(error: ValidationError, args: Mapping[str, Any], shape: type[BaseModel]) -> str:
    """Return what is wrong with arguments as one text."""
    return "; ".join(f"{one.pointer or '/'}: {one.detail}" for one in to_problems(error, args, shape))
