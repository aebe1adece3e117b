"""Commands of people about MCP servers: `/signin`, `/signout`, and the prompts in `/help`."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.deliveries.transactions import Transaction
from gateway.conversations.questions import SIGN_IN
from gateway.store.accounts import mcp_prompts, mcp_sign_ins, records
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import approvals
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.mcp.sign_ins.stored_sign_ins import person_in

MAX_LINKS = 4
"""Links in one reply, so that no platform cuts it."""


async def execute_sign_in_command(
    tx: Transaction, conversation: Conversation, links: SignInLinks | None, *, by: str
) -> str:
    """Return the links that wait for this person in any conversation, or the servers of present sign-ins."""
    person = await person_in(tx.connection, conversation, by)
    waiting = await approvals.list_pending_for_tool(tx.connection, conversation.account, SIGN_IN)
    mine = [one for one in waiting if person and one.args["person"] == person]
    if mine and links is not None:
        lines = [
            f"{one.args['server']}: {links.link(one.account, one.turn, one.call)}" for one in mine[:MAX_LINKS]
        ]
        more = [f"{len(mine) - MAX_LINKS} more: `/signin` again afterwards."] if mine[MAX_LINKS:] else []
        return "\n".join([*lines, *more])
    servers = await mcp_sign_ins.list_servers(tx.connection, conversation.agent, person)
    if not servers:
        return "Nothing waits for you to sign in."
    return f"You are signed in to {', '.join(servers)}. `/signout NAME` ends that."


MAX_SHOWN = 50
"""Prompts that `/help` lists."""


async def render_help(tx: Transaction, conversation: Conversation, text: str, *, by: str) -> str:
    """Return the help with the prompts of the agent's MCP servers, as this person sees them."""
    person = await person_in(tx.connection, conversation, by)
    found = await mcp_prompts.list_commands(tx.connection, conversation.agent, ["", person])
    agent = await records.get_by_id(tx.connection, conversation.agent)
    present = (agent.config.get("mcp") or {}) if agent is not None else {}
    commands = [one for server, listed in found.items() if server in present for one in listed]
    if not commands:
        return text
    more = " …" if len(commands) > MAX_SHOWN else ""
    return f"{text}\n\nPrompts: {', '.join(f'`{one}`' for one in commands[:MAX_SHOWN])}{more}"


async def execute_sign_out_command(
    tx: Transaction, conversation: Conversation, links: SignInLinks | None, args: Sequence[str], *, by: str
) -> str:
    """Delete this person's tokens at a server of the conversation's agent, and return the reply.

    They are revoked at the authorization server afterwards, if it has an endpoint for that.
    """
    if not args:
        return "Which server? `/signout NAME`; `/signin` lists those that you are signed in to."
    person = await person_in(tx.connection, conversation, by)
    agent = await records.get_by_id(tx.connection, conversation.agent)
    if not person or links is None or agent is None or not await links.sign_out(tx, agent, args[0], person):
        return f"You are not signed in to {args[0][:40]}."
    return f"You are signed out of {args[0]}; I have deleted what I had to use it for you."
