"""The tool react, and send_message, edit_message and delete_message for agents whose record lists places."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from delivery.deliveries.transactions import Transactions
from gateway.agents.clients.text import repair_surrogates
from gateway.agents.port import ToolResult, ToolSpec
from gateway.files.collection import FileRejected
from gateway.records.agent import agent_config
from gateway.records.agent_sends import AgentSends
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.files.file_arguments import has_workspace
from gateway.tools.messages.outgoing import OutgoingMessage, OutgoingMessages
from gateway.tools.messages.own_messages import LAST, OwnMessages
from gateway.tools.messages.reactions import TurnReactions
from gateway.tools.messages.targets import CannotSend
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed, str_argument, validate_arguments
from sandbox.errors import UnsafePath

MAX_TEXT = 20_000
"""Characters of a message."""

MAX_FILES = 10

SEND, EDIT, DELETE, REACT = "send_message", "edit_message", "delete_message", "react"
SEND_TOOLS = (SEND, EDIT, DELETE, REACT)

_MESSAGE = {"type": "string", "description": f"the id that {SEND} returned; {LAST}: your newest message here"}
_FILES = {"type": "array", "items": {"type": "string"}, "description": "files, relative to the workspace"}


def with_send_tools(transactions: Transactions, open_others: OpenExternalTools) -> OpenExternalTools:
    """Return a function that opens a turn's other tools, and adds those that its agent's `sends` allows."""

    @asynccontextmanager
    async def open_all(context: ToolContext) -> AsyncIterator[ExternalTools]:
        async with open_others(context) as others:
            yield replace(others, tools={**others.tools, **_tools(context, transactions)})

    return open_all


def _tools(context: ToolContext, transactions: Transactions) -> Mapping[str, Tool]:
    """Return the tools by name; `tools` of the record limits them as it does the built-in ones."""
    if context.agent is None:
        return {}
    config = agent_config(context.agent)
    tools: dict[str, Tool] = {REACT: _react_tool(TurnReactions(transactions, context.agent, context.turn))}
    if config.sends.to:
        outgoing = OutgoingMessages(transactions, context.files, context.agent, context.turn, config.sends)
        own = OwnMessages(transactions, context.agent, context.turn, config.sends)
        sends = _SendTools(outgoing, own, config.sends)
        tools |= sends.by_name(with_files=has_workspace(context))
    allowed = config.tool_names
    return {name: tool for name, tool in tools.items() if allowed is None or name in allowed}


class _SendTools:
    def __init__(self, outgoing: OutgoingMessages, own: OwnMessages, sends: AgentSends) -> None:
        self._outgoing = outgoing
        self._own = own
        self._sends = sends

    def by_name(self, *, with_files: bool) -> Mapping[str, Tool]:
        """Return the tools; without a workspace no files are sent."""
        return {
            SEND: self._tool(_send_spec(list(self._sends.to), with_files=with_files), self._send),
            EDIT: self._tool(_EDIT_SPEC, self._edit),
            DELETE: self._tool(_DELETE_SPEC, self._delete),
        }

    def _tool(self, spec: ToolSpec, run: Any) -> Tool:
        return Tool(
            spec=fixed(spec),
            needs_approval=lambda _sandbox: self._sends.approval == "always",
            run=run,
            idempotent=True,
            uses_workspace=False,
            validate=_validate,
        )

    async def _send(self, context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        to, text, files = str(args["to"]), _text(args), _files(args)
        try:
            if files:
                await self._stage(context, to, files, key)
            message = await self._outgoing.send(OutgoingMessage(to=to, text=text, key=key))
        except (CannotSend, FileRejected, UnsafePath) as error:
            return ToolResult(ok=False, content=f"the message was not sent: {error}")
        detail = {"message": message, "to": to, "files": len(files)}
        said = f"the message {message} to {to} is queued for delivery"
        return ToolResult(ok=True, content=said, detail=detail)

    async def _stage(self, context: ToolContext, to: str, files: Sequence[str], key: str) -> None:
        """Store the files for the message; they wait in its conversation until it is sent."""
        conversation = await self._outgoing.open(to)
        for path in files:
            await context.files.deliver(
                context.turn,
                context.environment,
                path,
                caption="",
                key=f"{key}\n{path}",
                other=(conversation.id, key),
            )

    async def _edit(self, _context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        return await self._change(str_argument(args, "message"), _text(args), key)

    async def _delete(self, _context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        return await self._change(str_argument(args, "message"), None, key)

    async def _change(self, message: str, text: str | None, key: str) -> ToolResult:
        what = "deleted" if text is None else "changed"
        try:
            changed = await self._own.change(message, text, key=key)
        except CannotSend as error:
            return ToolResult(ok=False, content=f"the message was not {what}: {error}")
        said = f"the message {changed} will be {what}"
        return ToolResult(ok=True, content=said, detail={"message": changed})


def _react_tool(reactions: TurnReactions) -> Tool:
    """Return the tool react; like an answer, it needs no approval."""

    async def run(_context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        emoji = _storable(str_argument(args, "emoji"))
        message = _storable(str_argument(args, "message", required=False))
        try:
            await reactions.add(emoji, message or None, key=key)
        except CannotSend as error:
            return ToolResult(ok=False, content=f"no reaction was added: {error}")
        return ToolResult(ok=True, content=f"the reaction {emoji} will be added")

    return Tool(
        spec=fixed(_REACT_SPEC),
        needs_approval=lambda _sandbox: False,
        run=run,
        idempotent=True,
        uses_workspace=False,
    )


def _storable(text: str) -> str:
    return repair_surrogates(text).replace("\0", "\ufffd")


def _text(args: Mapping[str, Any]) -> str:
    text = _storable(str_argument(args, "text"))
    if not text.strip():
        raise InvalidArguments("text must not be empty")
    if len(text) > MAX_TEXT:
        raise InvalidArguments(f"text must have at most {MAX_TEXT} characters, not {len(text)}")
    return text


def _files(args: Mapping[str, Any]) -> Sequence[str]:
    files = args.get("files") or []
    if not all(isinstance(path, str) and path for path in files) or len(files) > MAX_FILES:
        raise InvalidArguments(f"files must be at most {MAX_FILES} paths")
    return tuple(dict.fromkeys(files))


def _validate(schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    validate_arguments(schema, args)
    _files(args)
    if "text" in schema["properties"]:
        _text(args)


def _send_spec(places: Sequence[str], *, with_files: bool) -> ToolSpec:
    properties = {"to": {"type": "string", "enum": list(places)}, "text": {"type": "string"}}
    return ToolSpec(
        name=SEND,
        description=(
            "Send a message to another place than this conversation. Your answers here need no tool. "
            "People there can answer in that place, not here."
        ),
        schema={
            "type": "object",
            "properties": properties | ({"files": _FILES} if with_files else {}),
            "required": ["to", "text"],
            "additionalProperties": False,
        },
    )


_REACT_SPEC = ToolSpec(
    name=REACT,
    description="React with one emoji to a message of this chat.",
    schema={
        "type": "object",
        "properties": {
            "emoji": {"type": "string", "description": "such as 👍"},
            "message": {"type": "string", "description": "its id; without one, the message that you answer"},
        },
        "required": ["emoji"],
        "additionalProperties": False,
    },
)
_EDIT_SPEC = ToolSpec(
    name=EDIT,
    description="Replace the text of a message that you sent.",
    schema={
        "type": "object",
        "properties": {"message": _MESSAGE, "text": {"type": "string"}},
        "required": ["message", "text"],
        "additionalProperties": False,
    },
)
_DELETE_SPEC = ToolSpec(
    name=DELETE,
    description="Delete a message that you sent.",
    schema={
        "type": "object",
        "properties": {"message": _MESSAGE},
        "required": ["message"],
        "additionalProperties": False,
    },
)
