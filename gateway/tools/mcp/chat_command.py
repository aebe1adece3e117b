"""The commands `/signin` and `/signout`: links for the sign-ins that turns wait for, and the end of one."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.deliveries.transactions import Transaction
from gateway.conversations.questions import SIGN_IN
from gateway.store.accounts import mcp_sign_ins
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import approvals
from gateway.tools.mcp.sign_in_links import SignInLinks
from gateway.tools.mcp.sign_ins import person_in

ONLY_DIRECT = "Write `/signin` to me in a direct chat: the link is for you alone."


async def execute_sign_in_command(
    tx: Transaction, conversation: Conversation, links: SignInLinks | None, *, by: str
) -> str:
    """Return the links that wait for this person in any conversation, or the servers of present sign-ins."""
    if conversation.channel is not None and not conversation.direct:
        return ONLY_DIRECT
    person = await person_in(tx.connection, conversation, by)
    waiting = await approvals.list_pending_for_tool(tx.connection, conversation.account, SIGN_IN)
    mine = [one for one in waiting if person and one.args["person"] == person]
    if mine and links is not None:
        return "\n".join(
            f"{one.args['server']}: {links.link(one.account, one.turn, one.call)}" for one in mine
        )
    servers = await mcp_sign_ins.list_servers(tx.connection, conversation.agent, person)
    if not servers:
        return "Nothing waits for you to sign in."
    return f"You are signed in to {', '.join(servers)}. `/signout NAME` ends that."


async def execute_sign_out_command(
    tx: Transaction, conversation: Conversation, args: Sequence[str], *, by: str
) -> str:
    """Delete this person's tokens at a server of the conversation's agent, and return the reply."""
    if not args:
        return "Which server? `/signout NAME`; `/signin` lists those that you are signed in to."
    person = await person_in(tx.connection, conversation, by)
    key = SignInKey(agent=conversation.agent, server=args[0], person=person)
    if not person or not await mcp_sign_ins.remove(tx.connection, key):
        return f"You are not signed in to {args[0][:40]}."
    return f"You are signed out of {args[0]}; I have deleted what I had to use it for you."
