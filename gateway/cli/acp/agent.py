"""The methods that an editor calls. https://agentclientprotocol.com."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gateway.cli.acp.peer import (
    CANCEL_REQUEST,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    JsonRpcPeer,
    RpcError,
)
from gateway.cli.acp.prompts import read_prompt
from gateway.cli.acp.session import AcpSession
from gateway.cli.client import ApiError, GatewayClient

PROTOCOL_VERSION = 1
NOT_FOUND = 404
SESSION_PREFIX = "acp-"
"""The beginning of the names of conversations that are sessions."""
PAGE = 100
"""Conversations of one request for the sessions."""

CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
}


class AcpAgent:
    """The agent side of the protocol: sessions are conversations of the gateway."""

    def __init__(self, gateway: GatewayClient, peer: JsonRpcPeer, agent: str | None) -> None:
        self._gateway = gateway
        self._peer = peer
        self._agent = agent
        self._sessions: dict[str, AcpSession] = {}
        self._methods: dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            "initialize": self._initialize,
            "session/new": self._new_session,
            "session/load": self._load_session,
            "session/resume": self._resume_session,
            "session/list": self._list_sessions,
            "session/close": self._close_session,
            "session/delete": self._delete_session,
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
            CANCEL_REQUEST: self._cancel_request,
        }

    async def handle(self, method: str, params: Mapping[str, Any]) -> Any:
        """Handle a request or notification; raises RpcError, CommandFailed."""
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")
        return await handler(params)

    async def _initialize(self, _params: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "dovecote", "title": "Dovecote", "version": version("dovecote")},
            "authMethods": [],
        }

    async def _new_session(self, _params: Mapping[str, Any]) -> dict[str, Any]:
        identity = f"{SESSION_PREFIX}{secrets.token_hex(8)}"
        session = self._sessions[identity] = AcpSession(identity, self._gateway, self._peer, self._agent)
        self._peer.start(session.offer_commands())
        return {"sessionId": identity}

    async def _load_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._open_session(_session_id(params), AcpSession.load)

    async def _resume_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._open_session(_session_id(params), AcpSession.resume)

    async def _open_session(
        self, identity: str, begin: Callable[[AcpSession], Awaitable[None]]
    ) -> dict[str, Any]:
        session = AcpSession(identity, self._gateway, self._peer, self._agent)
        try:
            await begin(session)
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise RpcError(RESOURCE_NOT_FOUND, f"there is no session {identity!r}") from error
            raise
        earlier = self._sessions.get(identity)
        if earlier is not None:
            earlier.leave(RpcError(INVALID_REQUEST, "the session was opened again"))
        self._sessions[identity] = session
        self._peer.start(session.offer_commands())
        return {}

    async def _list_sessions(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of sessions, the last active first. They belong to every directory."""
        query: dict[str, str | int] = {"q": SESSION_PREFIX, "limit": PAGE}
        if isinstance(cursor := params.get("cursor"), str):
            query["cursor"] = cursor
        if self._agent:
            query["agent"] = self._agent
        page = await self._gateway.get("conversations", **query)
        directory = str(params.get("cwd") or Path.cwd())
        sessions = [
            {
                "sessionId": one["name"],
                "cwd": directory,
                "title": one["title"],
                "updatedAt": one["active_at"],
            }
            for one in page["items"]
            if str(one["name"]).startswith(SESSION_PREFIX)
        ]
        return {"sessions": sessions, **({"nextCursor": page["next"]} if page["next"] else {})}

    async def _close_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        await self._session(params).close()
        del self._sessions[_session_id(params)]
        return {}

    async def _delete_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Delete a session's conversation; one that does not exist is deleted already."""
        identity = _session_id(params)
        session = self._sessions.pop(identity, None)
        if session is not None:
            await session.close()
        try:
            await self._gateway.delete("conversations", identity)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
        return {}

    async def _prompt(self, params: Mapping[str, Any]) -> dict[str, Any]:
        blocks = params.get("prompt")
        prompt = read_prompt(blocks if isinstance(blocks, list) else [])
        return {"stopReason": await self._session(params).prompt(prompt)}

    async def _cancel(self, params: Mapping[str, Any]) -> None:
        await self._session(params).cancel()

    async def _cancel_request(self, params: Mapping[str, Any]) -> None:
        """Cancel a prompt, whose answer says so; the other requests end by themselves."""
        request = self._peer.request_of(params.get("requestId"))
        if request is not None and request["method"] == "session/prompt":
            await self._cancel(request["params"])

    def _session(self, params: Mapping[str, Any]) -> AcpSession:
        session = self._sessions.get(_session_id(params))
        if session is None:
            raise RpcError(RESOURCE_NOT_FOUND, "there is no such session: create or load it")
        return session


def _session_id(params: Mapping[str, Any]) -> str:
    identity = params.get("sessionId")
    if not isinstance(identity, str) or not identity:
        raise RpcError(INVALID_PARAMS, "sessionId is missing")
    return identity
