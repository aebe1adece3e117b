"""Scripts of the workspace as tools: a file in it describes them, and they run in the sandbox only."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any

import structlog
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from egress.typed_model import TypedModel
from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.agent import agent_config
from gateway.records.tools.background import MAX_TIMEOUT
from gateway.records.tools.http_requests import ToolParameters
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.builtin.bash import check_command, start_job, to_response
from gateway.tools.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.tool import Tool, ToolContext, check_argument_names, definition_of, fixed
from sandbox.errors import SandboxError
from sandbox.model import ExecRequest

log = structlog.get_logger(__name__)

MAX_MANIFEST_BYTES = 128 * 1024
MAX_SCRIPTS = 50
JOB_NOTE = "It runs on as a background job: you get its resultId at once and its result later."
_RUNNERS = {".py": "python3", ".sh": "bash", ".js": "node"}


def _inside(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError("must be a path inside the workspace, without ..")
    return path


class ScriptConfig(TypedModel):
    """One script. `parameters` is the JSON schema of its arguments, which it reads from stdin as JSON.

    `timeout` is in seconds; null is the sandbox's. With `async` each call is a background job, which has no
    time-out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    script: Annotated[StrictStr, Field(min_length=1, max_length=1000), AfterValidator(_inside)]
    description: Annotated[StrictStr, Field(min_length=1, max_length=4000)]
    parameters: ToolParameters = Field(default_factory=dict)
    timeout: Annotated[int, Field(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None
    is_async: StrictBool = Field(default=False, alias="async")

    @model_validator(mode="after")
    def _no_timeout_of_jobs(self) -> ScriptConfig:
        if self.is_async and self.timeout is not None:
            raise ValueError("timeout: a background job has none: leave it out, or leave async out")
        return self

    def command(self) -> str:
        """Return the shell command that runs it."""
        runner = next((run for suffix, run in _RUNNERS.items() if self.script.endswith(suffix)), None)
        path = shlex.quote(f"./{self.script}")
        return f"exec {runner} {path}" if runner else f"exec {path}"

    def job_command(self, args: Mapping[str, Any]) -> str:
        """Return the shell command that runs it as a job, which has no other input than its command."""
        return f"{self.command()} <<<{shlex.quote(json.dumps(dict(args)))}"


_Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=60)]
_MANIFEST = TypeAdapter(Annotated[dict[_Name, ScriptConfig], Field(max_length=MAX_SCRIPTS)])


class ScriptTools:
    """Offers the scripts that an agent's record names beside other external tools."""

    def __init__(self, others: OpenExternalTools) -> None:
        self._others = others

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[ExternalTools]:
        """Open the scripts, and the others; a manifest that cannot be used is a note for the model."""
        manifest = agent_config(context.agent).scripts if context.agent is not None else None
        return self._others(context) if manifest is None else self._open(context, manifest)

    @asynccontextmanager
    async def _open(self, context: ToolContext, manifest: str) -> AsyncIterator[ExternalTools]:
        async with self._others(context) as others:
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
        log.warning("script_tools.read_failed", agent=context.turn.agent, path=path, error=str(error))
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
    description = f"{config.description}\n{JOB_NOTE}" if config.is_async else config.description
    spec = ToolSpec(name=name, description=description, schema=schema)

    async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        if config.is_async:
            return await start_job(context, check_command(config.job_command(args)), key)
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
        spec=fixed(spec),
        needs_approval=commands_need_approval,
        run=run,
        idempotent=False,
        is_available=lambda context: (
            context.environment == opened.environment and not context.environment.files_only
        ),
        definition=definition_of(spec, config.command()),
        validate=check_argument_names,
    )
