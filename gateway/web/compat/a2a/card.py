"""The agent card: what the gateway speaks, and for a key also which agents it has."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from gateway.store.accounts import records
from gateway.web.compat.a2a.requests import A2aQuery
from gateway.web.http.route import ApiCall, NoContent

PATH = "/a2a"
_MODES = ["text/plain", "application/json", "application/octet-stream"]
_TALK = {
    "id": "conversation",
    "name": "Conversation",
    "description": "Answers messages, uses its tools in a sandbox, and asks when a person has to decide.",
    "tags": ["chat", "tools"],
}


async def get_card(call: ApiCall[NoContent, A2aQuery]) -> web.Response:
    """Return the public card; with `agent` its address is that agent's."""
    return web.json_response(make_card(call, call.query.agent), headers={"Cache-Control": "no-store"})


async def extended_card(call: ApiCall[Any, Any], agent: str | None) -> dict[str, Any]:
    """Return the card with the account's agents as skills."""
    async with call.context.database.read() as connection:
        found = await records.list_by_kind(connection, call.account, "agent")
    skills = [
        {
            "id": one.name,
            "name": one.name,
            "description": f"The agent {one.name}: select it as the tenant, or with ?agent= in the address.",
            "tags": ["agent"],
        }
        for one in found
    ]
    return {**make_card(call, agent), "skills": [_TALK, *skills]}


def make_card(call: ApiCall[Any, Any], agent: str | None) -> dict[str, Any]:
    """Return the card in the shape of version 1.0, with the members that clients of 0.3 read."""
    request = call.request
    base = (call.context.public_url or f"{request.scheme}://{request.host}").rstrip("/")
    url = f"{base}{PATH}" + (f"?agent={quote(agent, safe='')}" if agent else "")
    interfaces = [
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version} for version in ("1.0", "0.3")
    ]
    bearer = {"scheme": "bearer", "description": "an API key of an account"}
    return {
        "name": agent or "Dovecote",
        "description": "An agent of a Dovecote gateway. A task survives restarts of the gateway.",
        "version": "1",
        "supportedInterfaces": interfaces,
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": True},
        "securitySchemes": {"key": {"httpAuthSecurityScheme": bearer, "type": "http", **bearer}},
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        "defaultInputModes": _MODES,
        "defaultOutputModes": _MODES[:1],
        "skills": [_TALK],
        "url": url,
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "supportsAuthenticatedExtendedCard": True,
        "security": [{"key": []}],
    }
