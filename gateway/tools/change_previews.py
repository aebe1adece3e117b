"""Show how calls would change files and notes, for the questions whether they may."""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.agents.port import PendingToolCall
from gateway.conversations.text_change import ChangedKind, PresentText, TextChange
from gateway.tools.files.file_arguments import path_argument
from gateway.tools.tool import InvalidArguments, Tool, ToolContext
from sandbox.errors import SandboxError
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

PREVIEW_TIMEOUT = 5.0
"""Seconds that the question about a change may wait for the present file."""

START_TIMEOUT = 60.0
"""Seconds that the check of an approved change may wait for its sandbox."""

MAX_PREVIEW_BYTES = 256 * 1024
"""The largest file whose change is shown as a diff."""

Validate = Callable[[Tool, Mapping[str, Any], ToolContext], None]
"""Raises InvalidArguments unless the arguments match the schema that the model was given."""

_MISSING = "missing"


@dataclass(slots=True, kw_only=True)
class ChangePreviews:
    """The files and notes that calls would change, if they are made one after the other.

    With `start` the sandbox is started to read a file, and a file that cannot be read is returned with the
    problem. Without, only files that can be read at once are found.
    """

    context: ToolContext
    validate: Validate
    start: bool = False
    _contents: dict[tuple[str, str], bytes | None] = field(default_factory=dict)
    """What earlier calls left, by workspace and path, or by the id of a note; None: that is unknown."""

    async def of(self, tool: Tool, call: PendingToolCall) -> PresentText | None:
        """Return the file as a call would find it; None: it is unknown, so show all arguments."""
        if tool.changed_text is None:
            return None
        try:
            context = tool.context_of(self.context, call.args)
            self.validate(tool, call.args, context)
            if tool.present_note is not None:
                return self._of_note(tool, call, await tool.present_note(context, call.args))
            path = path_argument(call.args)
            key = (context.environment.spec.label, posixpath.normpath(path))
            content = self._contents[key] if key in self._contents else await self._read(context, path)
            return self._change(tool, call, key, content)
        except FileNotFoundError:
            return self._change(tool, call, key, b"", state=_MISSING)
        except InvalidArguments as error:
            log.debug("tool.change_hidden", turn=self.context.turn.id, error=str(error))
            return None
        except (OSError, SandboxError) as error:
            log.debug("tool.change_hidden", turn=self.context.turn.id, error=str(error))
            return PresentText(state="", problem=_problem(error)) if self.start else None

    def _of_note(self, tool: Tool, call: PendingToolCall, present: str | None) -> PresentText | None:
        """Return the note as a call would find it; None for a new one."""
        note = str(call.args.get("id") or "")
        if not note:
            return None
        if present is None:
            problem = f"there is no note {note!r} that may be changed here"
            return PresentText(state="", problem=problem, what="note") if self.start else None
        return self._change(
            tool, call, ("", note), self._contents.get(("", note), present.encode()), what="note"
        )

    async def _read(self, context: ToolContext, path: str) -> bytes | None:
        async with asyncio.timeout(START_TIMEOUT if self.start else PREVIEW_TIMEOUT):
            files = await self._files(context)
            content = await files.read(path, limit=MAX_PREVIEW_BYTES + 1) if files is not None else None
        return content if content is not None and len(content) <= MAX_PREVIEW_BYTES else None

    async def _files(self, context: ToolContext) -> Sandbox | None:
        resolver = context.environment_resolver
        files = await resolver.present_files(context.environment)
        return await resolver.sandbox(context.environment) if files is None and self.start else files

    def _change(
        self,
        tool: Tool,
        call: PendingToolCall,
        key: tuple[str, str],
        content: bytes | None,
        *,
        state: str = "",
        what: ChangedKind = "file",
    ) -> PresentText | None:
        """Return the file or note with the change of the call, and keep what the call leaves."""
        self._contents[key] = content
        if content is None or tool.changed_text is None:
            return None
        state = state or hashlib.sha256(content).hexdigest()
        try:
            before = content.decode("utf-8")
            after = tool.changed_text(call.args, before)
        except ValueError as error:
            log.debug("tool.change_hidden", turn=self.context.turn.id, error=str(error))
            return PresentText(state=state, what=what)
        self._contents[key] = after.encode("utf-8", "replace")
        shown = None if state == _MISSING else TextChange(before=before, after=after, what=what)
        return PresentText(state=state, change=shown, what=what)


def _problem(error: Exception) -> str:
    return str(error) or f"its sandbox did not answer within {START_TIMEOUT:g} s"
