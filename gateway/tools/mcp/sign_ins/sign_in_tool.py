"""The tool `SERVER_sign_in`: ask the person to sign in to an MCP server, and wait until that is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.agents.port import PendingToolCall, ToolResult, ToolSpec
from gateway.conversations.questions import SIGN_IN
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.mcp.sign_ins.links import SCOPE, SIGNED_IN, SignInLinks
from gateway.tools.mcp.sign_ins.stored_sign_ins import SignInPlace
from gateway.tools.tool import Tool, ToolContext, fixed

Token = Callable[[], Awaitable[str | None]]
"""Returns the person's token at the server; None without one."""


def sign_in_tool(
    name: str,
    server: str,
    *,
    place: SignInPlace,
    links: SignInLinks,
    is_required: Callable[[], bool],
    scope: Callable[[], str],
    token: Token,
) -> Tool:
    """Return the tool for a server. `scope` is what it requires beyond the person's present token."""
    spec = ToolSpec(
        name=name,
        description=(
            f"Ask the person to sign in to {server}, and wait until they have; that may take days. "
            f"Afterwards the tools of {server} work. Call it if {server} requires a sign-in, and you need it."
        ),
        schema={"type": "object", "properties": {}, "additionalProperties": False},
    )

    async def run(context: ToolContext, _args: Mapping[str, Any], _key: str) -> ToolResult:
        if await token() is not None:
            answered = "" if context.answer in (None, SIGNED_IN) else f" The person answers: {context.answer}"
            content = f"The person is signed in to {server}. Its tools can be used.{answered}"
            return ToolResult(ok=True, content=content)
        if context.answer is None and not is_required():
            return ToolResult(
                ok=False, content=f"{server} has required no sign-in: use its tools without one"
            )
        said = f": {context.answer}" if context.answer else ""
        return ToolResult(ok=False, content=f"no person has signed in to {server}{said}")

    return Tool(
        spec=fixed(spec),
        needs_approval=never_needs_approval,
        call_needs_approval=lambda _args: is_required(),
        run=run,
        idempotent=True,
        asks_person=True,
        uses_workspace=False,
        as_question=lambda context, call: _question(
            context, call, server=server, place=place, links=links, scope=scope()
        ),
    )


def _question(
    context: ToolContext,
    call: PendingToolCall,
    *,
    server: str,
    place: SignInPlace,
    links: SignInLinks,
    scope: str,
) -> PendingToolCall:
    """Return the call as the question that people see; only a private one has the link."""
    turn = context.turn
    args: dict[str, Any] = {"server": server, "agent": turn.agent, "person": place.person}
    args |= {SCOPE: scope} if scope else {}
    if place.is_private:
        args["url"] = links.link(turn.account, turn.id, call.id)
        args["question"] = f"Please sign in to {server}, so that I can use it for you: {args['url']}"
    else:
        args["question"] = (
            f"The person who asked must sign in to {server}. Write `/signin` here or in a direct chat: "
            "I answer with a link that only you can see."
        )
    return replace(call, name=SIGN_IN, args=args)
