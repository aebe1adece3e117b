"""Calls of a gateway in a process of its own, by its default account."""

from __future__ import annotations

from typing import Any

from gateway_process import GatewayProcess


async def call(process: GatewayProcess, method: str, path: str, **given: Any) -> dict[str, Any]:
    """Call the gateway as the account."""
    async with process.http() as session, session.request(method, path, **given) as response:
        assert response.status < 300, await response.text()
        return dict(await response.json()) if response.content_type == "application/json" else {}
