"""The HTTP requests of an agent record as tools, through guarded connections."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from egress.guard import EgressGuard
from egress.policy import EgressRefused, refusal
from egress.sessions import open_session
from gateway.agents.clients.text import repair_surrogates
from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.agent_requests import PLACEHOLDER, HttpToolConfig
from gateway.records.records import Records
from gateway.tools.external.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.mcp.server import MAX_ANSWER_BYTES
from gateway.tools.tool import InvalidArguments, Tool, ToolContext
from sandbox.config import SandboxConfig

log = structlog.get_logger(__name__)

_FIRST_FAILURE = 400
_QUERY_METHODS = frozenset({"GET", "DELETE"})
_SLOW_CHARSETS = frozenset({"idna", "punycode"})
"""Encodings whose time to decode grows faster than the text."""


class HttpTools:
    """Offers the HTTP tools of agent records beside other external tools."""

    def __init__(self, records: Records, others: OpenExternalTools) -> None:
        self._records = records
        self._others = others

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield the agent's HTTP tools, and the others; connections are closed with the block."""
        agent = context.agent
        configs = self._records.http_tools(agent) if agent is not None else {}
        async with self._others(context) as others:
            if agent is None or not configs:
                yield others
                return
            requests = _Requests(self._records.guard_of(agent))
            try:
                tools = {name: _to_tool(name, config, requests) for name, config in configs.items()}
                yield replace(others, tools={**others.tools, **tools})
            finally:
                await requests.aclose()


class _Requests:
    """Sends the requests of one turn; the session is opened for the first one."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, config: HttpToolConfig, args: Mapping[str, Any], *, limit: int, key: str
    ) -> ToolResult:
        """Send a request; refused connections, failures and time-outs are results."""
        if self._session is None:
            self._session = open_session(self._guard, headers={"User-Agent": "Dovecote"})
        try:
            async with asyncio.timeout(config.timeout):
                return await self._send(self._session, config, args, limit=limit, key=key)
        except TimeoutError:
            return _failed(f"no answer within {config.timeout} s", may_have_run=True)
        except (aiohttp.ClientError, EgressRefused, OSError) as error:
            refused = refusal(error)
            if refused is not None:
                return _failed(f"the address is refused: {refused}", may_have_run=False)
            log.info("http_tool.failed", error=str(error))
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            return _failed(f"the request failed: {type(error).__name__}", may_have_run=connected)

    async def _send(
        self,
        session: aiohttp.ClientSession,
        config: HttpToolConfig,
        args: Mapping[str, Any],
        *,
        limit: int,
        key: str,
    ) -> ToolResult:
        url, rest = build_request(config, args)
        headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        body = None if config.method in _QUERY_METHODS else rest
        headers.setdefault("Idempotency-Key", key)
        async with session.request(
            config.method, url, headers=headers, json=body, allow_redirects=False
        ) as response:
            content = await _read(response)
        text = decode(content, response.charset)
        truncated = len(text) > limit
        shown = f"{text[:limit]}\n[output truncated]" if truncated else text
        return ToolResult(
            ok=response.status < _FIRST_FAILURE,
            content=repair_surrogates(f"HTTP {response.status}\n{shown}").replace("\0", "\ufffd"),
            detail={"status": response.status} | ({"truncated": True} if truncated else {}),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, MAX_ANSWER_BYTES at most."""
    content = bytearray()
    while len(content) < MAX_ANSWER_BYTES:
        chunk = await response.content.read(MAX_ANSWER_BYTES - len(content))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def decode(content: bytes, charset: str | None) -> str:
    """Return a body as text; a charset that is missing, unknown or no text encoding counts as UTF-8."""
    try:
        name = codecs.lookup(charset or "utf-8").name
        if name not in _SLOW_CHARSETS:
            return content.decode(name, "replace")
    except (LookupError, ValueError):
        pass
    return content.decode("utf-8", "replace")


def build_request(config: HttpToolConfig, args: Mapping[str, Any]) -> tuple[URL, dict[str, Any]]:
    """Return the address of a call, and the arguments that its body has; raises InvalidArguments."""
    used = set(config.placeholders())
    path = PLACEHOLDER.sub(lambda found: _url_part(found[1], args.get(found[1])), config.url)
    rest = {name: value for name, value in args.items() if name not in used}
    url = URL(path, encoded=True)
    if config.method in _QUERY_METHODS and rest:
        url = url.update_query({name: _plain(value) for name, value in rest.items() if value is not None})
        rest = {}
    return url, rest


def _url_part(name: str, value: Any) -> str:
    text = _plain(value)
    if not isinstance(value, str | int | float) or text in {"", ".", ".."}:
        raise InvalidArguments(f"{name} must be a text or a number, and neither empty nor . nor ..")
    return quote(text.encode("utf-8", "replace"), safe="")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _to_tool(name: str, config: HttpToolConfig, requests: _Requests) -> Tool:
    spec = ToolSpec(name=name, description=config.description, schema=config.arguments_schema())

    async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        return await requests.send(config, args, limit=context.environment.config.output_limit, key=key)

    return Tool(
        spec=lambda _context: spec,
        needs_approval=lambda sandbox: _needs_approval(config, sandbox),
        run=run,
        idempotent=config.repeatable,
        validate=lambda schema, args: _validate(config, schema, args),
        uses_workspace=False,
        address=lambda args: _address(config, args),
    )


def _address(config: HttpToolConfig, args: Mapping[str, Any]) -> str:
    try:
        url, _body = build_request(config, args)
    except InvalidArguments:
        return f"{config.method} {config.url}"
    return f"{config.method} {url}"


def _failed(reason: str, *, may_have_run: bool) -> ToolResult:
    advice = "\nThe request may have had an effect: check before you repeat it." if may_have_run else ""
    return ToolResult(ok=False, content=f"{reason}{advice}")


def _needs_approval(config: HttpToolConfig, sandbox: SandboxConfig) -> bool:
    if config.approval == "default":
        return sandbox.permission_mode in {"ask", "edit"}
    return config.approval == "always"


def _validate(config: HttpToolConfig, schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments for missing and unknown arguments; the server checks the values.

    The schema is the account's: a pattern in it could keep the gateway busy.
    """
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if args.get(name) is None:
            raise InvalidArguments(f"{name} is missing")
    for name in args:
        if name not in properties and not schema.get("additionalProperties", False):
            raise InvalidArguments(f"there is no argument {name!r}; there are {', '.join(properties)}")
    build_request(config, args)
