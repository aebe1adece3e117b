"""Scripts of the workspace as tools: a file in it describes them, and they run in the sandbox only."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.agent import agent_config
from gateway.records.tools.http_requests import ToolParameters
from gateway.records.tools.mcp_servers import MAX_TIMEOUT
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.bash import to_response
from gateway.tools.external.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.tool import Tool, ToolContext, check_argument_names
from sandbox.errors import SandboxError
from sandbox.model import ExecRequest

log = structlog.get_logger(__name__)

MAX_MANIFEST_BYTES = 128 * 1024
MAX_SCRIPTS = 50
_RUNNERS = {".py": "python3", ".sh": "bash", ".js": "node"}


def _inside(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("must be a path inside the workspace, without ..")
    return path


class ScriptConfig(BaseModel):
    """One script. `parameters` is the JSON schema of its arguments, which it reads from stdin as JSON.

    `timeout` is in seconds; null is the sandbox's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    script: Annotated[StrictStr, Field(min_length=1, max_length=1000), AfterValidator(_inside)]
    description: Annotated[StrictStr, Field(min_length=1, max_length=4000)]
    parameters: ToolParameters = Field(default_factory=dict)
    timeout: Annotated[int, Field(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None

    def command(self) -> str:
        """Return the shell command that runs it."""
        runner = next((run for suffix, run in _RUNNERS.items() if self.script.endswith(suffix)), None)
        path = shlex.quote(f"./{self.script}")
        return f"exec {runner} {path}" if runner else f"exec {path}"


_Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=60)]
_MANIFEST = TypeAdapter(Annotated[dict[_Name, ScriptConfig], Field(max_length=MAX_SCRIPTS)])


class ScriptTools:
    """Offers the scripts that an agent's record names beside other external tools."""

    def __init__(self, others: OpenExternalTools) -> None:
        self._others = others

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield the scripts, and the others; a manifest that cannot be used is a note for the model."""
        manifest = agent_config(context.agent).scripts if context.agent is not None else None
        async with self._others(context) as others:
            if manifest is None:
                yield others
                return
            found = await _read_manifest(context, manifest)
            if isinstance(found, str):
                note = f"The scripts of {manifest} are missing in this turn: {found}"
                yield replace(others, notes=(*others.notes, note))
                return
            scripts = {name: _to_tool(name, config, context) for name, config in found.items()}
            yield replace(others, tools={**scripts, **others.tools})


async def _read_manifest(context: ToolContext, path: str) -> Mapping[str, ScriptConfig] | str:
    """Return the scripts by name, or why there are none. No sandbox is started for this."""
    try:
        files = await context.environment_resolver.present_files(context.environment)
        if files is None:
            return "the agent has no workspace"
        content = await files.read(path, limit=MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except (SandboxError, OSError) as error:
        log.warning("script_tools.unreadable", agent=context.turn.agent, path=path, error=str(error))
        return "the file cannot be read"
    if len(content) > MAX_MANIFEST_BYTES:
        return f"the file has more than {MAX_MANIFEST_BYTES} bytes"
    try:
        return _MANIFEST.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"[:500]


def _to_tool(name: str, config: ScriptConfig, opened: ToolContext) -> Tool:
    schema = {"type": "object", "properties": {}, **config.parameters}
    spec = ToolSpec(name=name, description=config.description, schema=schema)

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        sandbox = await context.environment_resolver.sandbox(context.environment)
        limits = context.environment.config
        result = await sandbox.run(
            ExecRequest(
                script=config.command(),
                stdin=json.dumps(dict(args)).encode(),
                timeout=float(config.timeout or limits.timeout),
                output_limit=limits.output_limit,
                on_output=context.on_output,
            )
        )
        shape = to_response(result)
        content = shape["stdout"] if result.ok else json.dumps(shape, ensure_ascii=False)
        return ToolResult(ok=result.ok, content=content, detail=shape)

    return Tool(
        spec=lambda _context: spec,
        needs_approval=commands_need_approval,
        run=run,
        idempotent=False,
        is_available=lambda context: (
            context.environment == opened.environment and not context.environment.files_only
        ),
        validate=check_argument_names,
    )
