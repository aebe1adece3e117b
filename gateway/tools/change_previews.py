"""Show how a call would change a file, for the question whether it may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.agents.port import PendingToolCall
from gateway.conversations.file_change import FileChange
from gateway.tools.files.file_arguments import path_argument
from gateway.tools.tool import InvalidArguments, Tool, ToolContext
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

PREVIEW_TIMEOUT = 5.0
"""Seconds that the question about a change may wait for the present file."""

MAX_PREVIEW_BYTES = 256 * 1024
"""The largest file whose change is shown as a diff."""

Validate = Callable[[Tool, Mapping[str, Any], ToolContext], None]
"""Raises InvalidArguments unless the arguments match the schema that the model was given."""


async def preview_change(
    tool: Tool, call: PendingToolCall, context: ToolContext, validate: Validate
) -> FileChange | None:
    """Return how a call would change a file that can be read at once; None: show all its arguments."""
    if tool.changed_text is None:
        return None
    try:
        context = context.in_workspace(call.args)
        validate(tool, call.args, context)
        async with asyncio.timeout(PREVIEW_TIMEOUT):
            files = await context.environment_resolver.present_files(context.environment)
            if files is None:
                return None
            content = await files.read(path_argument(call.args), limit=MAX_PREVIEW_BYTES + 1)
        before = content.decode("utf-8")
        if len(content) > MAX_PREVIEW_BYTES:
            return None
        return FileChange(before=before, after=tool.changed_text(call.args, before))
    except (InvalidArguments, ValueError, OSError, SandboxError) as error:
        log.debug("tool.change_hidden", turn=context.turn.id, error=str(error))
        return None
