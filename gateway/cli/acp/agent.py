"""The methods that an editor calls. https://agentclientprotocol.com."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from gateway.cli.acp.peer import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    JsonRpcPeer,
    RpcError,
)
from gateway.cli.acp.session import AcpSession
from gateway.cli.client import ApiError, GatewayClient

PROTOCOL_VERSION = 1
MAX_TEXT = 60_000
"""Characters of a message over the gateway's WebSocket."""
NOT_FOUND = 404


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
            "session/prompt": self._prompt,
            "session/cancel": self._cancel,
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
            "agentCapabilities": {"loadSession": True, "promptCapabilities": {"embeddedContext": True}},
            "agentInfo": {"name": "dovecote", "title": "Dovecote", "version": version("dovecote")},
            "authMethods": [],
        }

    async def _new_session(self, _params: Mapping[str, Any]) -> dict[str, Any]:
        identity = f"acp-{secrets.token_hex(8)}"
        self._sessions[identity] = AcpSession(identity, self._gateway, self._peer, self._agent)
        return {"sessionId": identity}

    async def _load_session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        identity = _session_id(params)
        session = AcpSession(identity, self._gateway, self._peer, self._agent)
        try:
            await session.load()
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise RpcError(RESOURCE_NOT_FOUND, f"there is no session {identity!r}") from error
            raise
        self._sessions[identity] = session
        return {}

    async def _prompt(self, params: Mapping[str, Any]) -> dict[str, Any]:
        blocks = params.get("prompt")
        text = read_prompt(blocks if isinstance(blocks, list) else [])
        return {"stopReason": await self._session(params).prompt(text)}

    async def _cancel(self, params: Mapping[str, Any]) -> None:
        await self._session(params).cancel()

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


def read_prompt(blocks: Sequence[Any]) -> str:
    """Return the text of a prompt, with links and embedded texts; raises RpcError."""
    text = "\n".join(_read_block(block) for block in blocks).strip()
    if not text:
        raise RpcError(INVALID_PARAMS, "the prompt is empty")
    if len(text) > MAX_TEXT:
        raise RpcError(INVALID_PARAMS, f"a prompt has at most {MAX_TEXT} characters; this has {len(text)}")
    return text


def _read_block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[{block.get('name') or uri}]({uri})"
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return f"{uri}:\n```\n{text}\n```"
    raise RpcError(INVALID_PARAMS, "a prompt consists of texts, links, and embedded texts")
