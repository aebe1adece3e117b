"""What a story of a sign-in at an MCP server needs: a model that uses the server, and a person's browser."""

from __future__ import annotations

from typing import Any, Self

import aiohttp
from yarl import URL

from openai_server import ScriptedTurn, ToolCall

LINK = "/sign-in/mcp?"
"""A part of the links with which people sign in."""


def whoami_model(body: dict[str, Any]) -> ScriptedTurn:
    """Ask for a sign-in while the server's tool is missing, then use the tool, then repeat its result."""
    offered = {tool["function"]["name"] for tool in body.get("tools", ())}
    results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
    since = body["messages"][-1]
    if since["role"] == "tool" and ("you are" in since["content"] or "notes_whoami" not in offered):
        return ScriptedTurn(text=f"the tool said: {results[-1]}")
    name = "notes_whoami" if "notes_whoami" in offered else "notes_sign_in"
    return ScriptedTurn(calls=[ToolCall(name=name, args={})])


class CookieClient:
    """A browser with its own cookies, which follows no redirect by itself."""

    def __init__(self) -> None:
        """Begin without cookies."""
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def __aenter__(self) -> Self:
        """Open it."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        await self._session.close()

    async def open(self, url: str | URL) -> tuple[int, str, str]:
        """Return a page's status, its text, and where it redirects to."""
        async with self._session.get(url, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer.headers.get("Location", "")

    async def begin(self, link: str) -> str:
        """Open a link, go on, sign in at the server, and return the URL to which that leads back."""
        status, _text, authorize = await self.open(URL(link).update_query(go="1"))
        assert status == 302, _text
        status, _text, back = await self.open(URL(authorize, encoded=True))
        assert status in {302, 303}, _text
        return back
