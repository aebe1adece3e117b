"""The tools of a client's request: the model calls them, and the client executes them and returns the result.

A call pauses the turn as a question to a person does (`ask_person`), so it waits durably.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.agents.client_request import ClientRequest, ClientToolSpec
from gateway.agents.port import ToolResult
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.tool import Tool, ToolContext, fixed


def with_client_tools(open_others: OpenExternalTools) -> OpenExternalTools:
    """Return a function that opens a turn's other tools, and adds the tools and the words of its client."""

    def open_all(context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        return open_with_request(context) if context.turn.request else open_others(context)

    @asynccontextmanager
    async def open_with_request(context: ToolContext) -> AsyncIterator[ExternalTools]:
        request = ClientRequest.parse(context.turn.request)
        async with open_others(context) as others:
            called = {name: _called_tool(name) for name in request.called_tools}
            offered = {spec.name: _client_tool(spec) for spec in request.tools}
            tools = {**called, **others.tools, **offered}
            notes = (*others.notes, request.instructions) if request.instructions else others.notes
            yield replace(others, tools=tools, notes=notes)

    return open_all


def _client_tool(spec: ClientToolSpec) -> Tool:
    return Tool(
        spec=fixed(spec),
        needs_approval=lambda _config: True,
        run=_run,
        idempotent=True,
        asks_person=True,
        uses_workspace=False,
        validate=None if spec.is_custom else _accept,
        is_of_client=True,
    )


def _called_tool(name: str) -> Tool:
    """Return a tool that the client offers no more; its calls that were made have their results."""
    spec = ClientToolSpec(name=name, description="", schema={"type": "object", "properties": {}})
    return replace(_client_tool(spec), is_listed=False)


def _accept(_schema: Mapping[str, Any], _args: Mapping[str, Any]) -> None:
    """Accept all arguments of a function: the client checks them."""


async def _run(context: ToolContext, _args: Mapping[str, Any], _key: str) -> ToolResult:
    if context.answer is None:
        return ToolResult(ok=False, content="the client did not return a result")
    limit = context.environment.config.output_limit
    cut = len(context.answer) > limit
    shown = f"{context.answer[:limit]}\n[output truncated]" if cut else context.answer
    return ToolResult(
        ok=True,
        content="\n".join([*filter(None, [shown]), *context.answer_files.lines]),
        detail={"truncated": True} if cut else {},
        images=context.answer_files.images,
    )
