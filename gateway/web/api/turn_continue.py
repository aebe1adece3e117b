"""Continue a turn elsewhere: a new conversation of its agent on its sandbox and workspaces."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictStr

from gateway.conversations.submissions.conversation_lookup import create_conversation
from gateway.environments.environment import Environment
from gateway.store import sandboxes
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations.conversations import ConversationExists, to_id
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from sandbox.errors import SandboxError
from sandbox.labels import Scope

Shared = Literal["workspace", "sandbox"]

NOTHING_LEFT = (
    "nothing of this turn is left for another conversation: its agent has no workspace, and its sandbox was "
    "deleted or belongs to its own conversation (scope SESSION or USER); send a message there"
)


class TurnContinueRequest(RequestModel):
    """A name of the caller's own for the new conversation."""

    conversation: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None


class TurnContinued(ResponseModel):
    """The new conversation, its agent, and what it shares with the turn."""

    conversationId: str
    agent: str
    shares: list[Shared]


async def continue_turn(call: ApiCall[TurnContinueRequest, NoContent]) -> TurnContinued:
    """Create a conversation of the turn's agent; 409 if nothing of the turn is left for it."""
    turn, agent = await find_turn_with_agent(call)
    shares = await _list_shared(call, turn, agent)
    if not shares:
        raise HttpProblem(409, NOTHING_LEFT)
    name = call.body.conversation
    if name is not None and to_id(name).startswith("cnv_"):
        raise invalid_field("/conversation", "a name of your own must not begin with cnv_")
    async with call.services.transactions.begin("turn.continue") as tx:
        try:
            created = await create_conversation(tx, account=call.account, agent=agent.id, name=name)
        except ConversationExists as error:
            raise HttpProblem(409, str(error)) from None
    return TurnContinued(conversationId=created.id, agent=agent.id, shares=shares)


async def find_turn_with_agent(call: ApiCall[Any, NoContent]) -> tuple[Turn, Record]:
    """Return the turn of a request and its agent; 404 without the turn, 409 without the agent."""
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, call.path["id"])
        if turn is None:
            raise not_found("there is no such turn in this account")
        agent = await records.get(connection, call.account, "agent", turn.agent)
    if agent is None:
        raise HttpProblem(409, "the agent of this turn was deleted: its sandbox and workspaces are unknown")
    return turn, agent


async def _list_shared(
    call: ApiCall[TurnContinueRequest, NoContent], turn: Turn, agent: Record
) -> list[Shared]:
    """Return what another conversation of the agent finds as the turn left it."""
    try:
        environments = await call.services.environment_resolver.resolve_all(
            agent, turn.conversation, person=turn.asker
        )
    except SandboxError as error:
        raise HttpProblem(409, f"the turn's sandbox cannot be used: {error}") from None
    shares: list[Shared] = []
    if any(one.workspace is not None for one in environments.values()):
        shares.append("workspace")
    if any([await _is_shared(call, one) for one in environments.values()]):
        shares.append("sandbox")
    return shares


async def _is_shared(call: ApiCall[TurnContinueRequest, NoContent], environment: Environment) -> bool:
    """Return whether a reserved sandbox that still exists, or its snapshot, serves other conversations."""
    if not environment.config.persistent or environment.owner.scope in {Scope.SESSION, Scope.USER}:
        return False
    async with call.context.database.read() as connection:
        row = await sandboxes.get(connection, environment.spec.label)
    return row is not None and (row.sandbox is not None or row.snapshot is not None)


ROUTES = (
    ApiRoute(
        method="POST",
        path="/turns/{id}/continue",
        access=KeyAccess("chat"),
        handler=continue_turn,
        summary="open a conversation on the sandbox and workspaces of a turn",
        request_model=TurnContinueRequest,
        response_model=TurnContinued,
        optional_body=True,
        status=201,
        error_responses={409: "nothing of the turn is left, or the name is in use"},
        tag="turns",
    ),
)
