"""What documents of the API say by hand: groups of operations in order, what requests need, the licence."""

from __future__ import annotations

from gateway.web.http.auth import (
    Access,
    AdminAccess,
    JobTokenAccess,
    KeyAccess,
    OneTimeCodeAccess,
    PlatformAccess,
    PublicAccess,
    SignatureAccess,
    SignedLinkAccess,
    SocketAccess,
    TicketAccess,
)

LICENSE = {"name": "Apache 2.0", "identifier": "Apache-2.0"}
"""The licence of the product, by its SPDX identifier."""

TAGS = {
    "turns": "Start turns of agents, follow them to their end, and cancel or repeat them.",
    "conversations": "Conversations with their messages and members, and messages to them.",
    "stream": "Events of conversations as they happen, by WebSocket and server-sent events.",
    "approvals": "Tool calls and questions that wait for a person.",
    "jobs": "Background jobs with their output.",
    "files": "Files that agents made or people sent.",
    "agents": "Agents: model, instructions, tools and limits.",
    "sandboxes": "Settings of the sandboxes in which agents work.",
    "live sandboxes": "Reserved sandboxes that exist: commands, services, screens, and their end.",
    "workspaces": "Workspaces and the files in them.",
    "skills": "Skills that agents load.",
    "memories": "Notes about people, rooms, agents and the account.",
    "credentials": "Secrets that tools use without a sandbox seeing them.",
    "channels": "Bots on chat platforms, their pairings and installations.",
    "persons": "People, linked over platforms.",
    "schedules": "Turns at a time or in intervals.",
    "triggers": "Turns that a signed request of another system starts.",
    "webhooks": "Receivers of events, their attempts and repeats.",
    "deliveries": "Messages and files on their way to chats and receivers.",
    "trace": "Every state of one message.",
    "usage": "Tokens, requests, costs and sandbox time, and their budgets.",
    "keys": "API keys of the account.",
    "audit": "Who changed what.",
    "accounts": "Accounts, for the operator.",
    "openai": "OpenAI's API: agents are its models.",
    "agui": "The AG-UI protocol.",
    "a2a": "The Agent2Agent protocol.",
    "ui": "The UI message stream of the AI SDK.",
    "mcp": "The gateway as an MCP server.",
    "console": "The console and its sign-in.",
    "status": "What the gateway and its channels do.",
    "operations": "Health and metrics, for supervisors.",
    "documents": "Descriptions of this API for programs.",
}
"""The groups, with a sentence for each."""

_NEEDS: dict[type[Access], str] = {
    AdminAccess: "Needs the operator's key.",
    PublicAccess: "Needs no key.",
    PlatformAccess: "Needs the signature of the platform.",
    OneTimeCodeAccess: "Needs a code that is valid once.",
    SignatureAccess: "Needs a signature with the secret of the resource.",
    JobTokenAccess: "Needs the token of the job.",
    SocketAccess: "Needs a key, in the header or the first frame.",
    SignedLinkAccess: "Needs a signed link, or a key.",
}


def describe_access(access: Access) -> str:
    """Return what a request needs to be allowed, as a sentence."""
    if isinstance(access, KeyAccess):
        or_ticket = ", or a ticket of the conversation" if isinstance(access, TicketAccess) else ""
        return f"Needs a key with the scope `{access.scope}`{or_ticket}."
    return _NEEDS[type(access)]
