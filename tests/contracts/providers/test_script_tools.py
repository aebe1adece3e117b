"""Scripts of a workspace as tools: described by a file in it, and run in its sandbox only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.agents.port import ToolResult
from gateway.records.agent import AgentConfig
from gateway.records.tools.http_requests import AgentTools
from gateway.store.accounts.records import Record
from gateway.tools.external.script_tools import ScriptTools
from gateway.tools.external_tools import ExternalTools, no_external_tools
from gateway.tools.tool import InvalidArguments, ToolContext
from sandbox.config import SandboxConfig
from sandbox.port import Sandbox
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

DOCUMENT = json.dumps(
    {"openapi": "3.1.0", "servers": [{"url": "https://example.org"}], "paths": {"/a": {"get": {}}}}
)
COUNT = """import json, os, sys
args = json.load(sys.stdin)
print(f"{args['bird']} has {len(args['bird'])} letters, in {os.path.basename(os.getcwd())!r}")
"""
BIRD = {"type": "object", "properties": {"bird": {"type": "string"}}, "required": ["bird"]}


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ToolContext]:
    """Return a tool context with a sandbox, and an agent whose record names `tools.json`."""
    rig: ProviderRig = all_rigs()["host-rlimits"](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        made = make_tool_context(SandboxConfig(provider=rig.plugin.name, persistent=True), sandbox, rig)
        yield replace(made, agent=_agent({"scripts": "tools.json"}))
        await provider.destroy(sandbox.id)


def _agent(tools: Any) -> Record:
    now = datetime.now(UTC)
    return Record(
        id="agt_1",
        account="acc_1",
        kind="agent",
        name="a",
        config={"tools": tools},
        created_at=now,
        updated_at=now,
    )


async def _sandbox(context: ToolContext) -> Sandbox:
    return await context.environment_resolver.sandbox(context.environment)


@asynccontextmanager
async def _opened(context: ToolContext, manifest: object) -> AsyncIterator[ExternalTools]:
    content = manifest if isinstance(manifest, str) else json.dumps(manifest)
    await (await _sandbox(context)).write("tools.json", content.encode())
    async with ScriptTools(no_external_tools).open(context) as external:
        yield external


async def _call(context: ToolContext, external: ExternalTools, name: str, args: dict[str, Any]) -> ToolResult:
    tool = external.tools[name]
    assert tool.validate is not None
    tool.validate(tool.spec(context).schema, args)
    return await tool.run(context, args, "key")


async def test_a_script_is_described_and_gets_its_arguments(context: ToolContext) -> None:
    """The model sees the schema; the script reads JSON from stdin in the workspace; a failure is a result."""
    sandbox = await _sandbox(context)
    await sandbox.write("bin/count it.py", COUNT.encode())
    await sandbox.write("bin/fail.sh", b"echo 'no such bird' >&2; exit 3")
    manifest = {
        "count": {"script": "bin/count it.py", "description": "Count letters.", "parameters": BIRD},
        "fail": {"script": "bin/fail.sh", "description": "Fail."},
    }
    async with _opened(context, manifest) as external:
        tool = external.tools["count"]
        assert tool.spec(context).schema["properties"] == BIRD["properties"]
        assert tool.needs_approval(SandboxConfig(permissionMode="ask"))
        assert not tool.needs_approval(SandboxConfig(permissionMode="bypass"))
        done = await _call(context, external, "count", {"bird": "ada'; exit 1"})
        failed = await _call(context, external, "fail", {})
        with pytest.raises(InvalidArguments, match="bird is missing"):
            await _call(context, external, "count", {})
        with pytest.raises(InvalidArguments, match="no argument 'wing'"):
            await _call(context, external, "count", {"bird": "ada", "wing": 1})
    assert done.ok
    assert done.content.startswith("ada'; exit 1 has 12 letters")
    assert not failed.ok
    assert json.loads(failed.content)["exit_code"] == 3
    assert "no such bird" in failed.content


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ("no json", "the file: Invalid JSON"),
        ({"count": {"script": "a.py"}}, "count.description: Field required"),
        ({"count": {"script": "../a.py", "description": "x"}}, "inside the workspace"),
        ({"count": {"script": "/bin/sh", "description": "x"}}, "inside the workspace"),
        ({"a b": {"script": "a.py", "description": "x"}}, "a b"),
        ({"count": {"script": "a.py", "description": "x", "parameters": {"type": "string"}}}, "parameters"),
        ({"count": {"script": "a.py", "description": "x", "async": True, "timeout": 5}}, "has none"),
        ({"count": {"script": "a.py", "description": "x", "async": "yes"}}, "count.async"),
        ('{"x": "' + "y" * 200_000 + '"}', "more than 131072 bytes"),
    ],
)
async def test_a_wrong_file_is_named_to_the_model(
    context: ToolContext, manifest: object, problem: str
) -> None:
    """No script is offered, and the note says what is wrong."""
    async with _opened(context, manifest) as external:
        assert external.tools == {}
        assert problem in external.notes[0]


async def test_only_agents_that_may_run_commands_have_scripts(context: ToolContext) -> None:
    """Without the record's word nothing is read; a record without commands cannot have scripts."""
    await (await _sandbox(context)).write("tools.json", b"no json")
    async with ScriptTools(no_external_tools).open(replace(context, agent=_agent(None))) as external:
        assert (external.tools, external.notes) == ({}, ())
    with pytest.raises(ValidationError, match="names must have 'bash'"):
        AgentTools(names=("read", "write"), scripts="tools.json")
    assert AgentTools(names=("bash",), scripts="tools.json").scripts == "tools.json"


async def test_a_job_is_refused_where_there_can_be_none(context: ToolContext) -> None:
    """The model learns why, and nothing runs."""
    manifest = {"count": {"script": "a.sh", "description": "Count.", "async": True}}
    async with _opened(context, manifest) as external:
        assert "background job" in external.tools["count"].spec(context).description
        elsewhere = replace(context.environment, config=SandboxConfig(provider="lambda"))
        refused = await external.tools["count"].run(replace(context, environment=elsewhere), {}, "key")
        assert not refused.ok
        assert "cannot run on lambda" in refused.content
        with pytest.raises(InvalidArguments, match="longer than"):
            await external.tools["count"].run(context, {"text": "x" * 70_000}, "key")


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({"mcp": {"s": {"command": "server", "async": True}}}, "script of the workspace"),
        ({"mcp": {"s": {"command": "server", "background_after": 5}}}, "script of the workspace"),
        ({"mcp": {"s": {"url": "https://example.org/", "timeout": 700}}}, "set async or background_after"),
        ({"tools": {"openapi": {"s": {"document": DOCUMENT, "timeout": 700}}}}, "set async for longer"),
        (
            {"mcp": {"s": {"url": "https://example.org/", "async": True, "background_after": 5}}},
            "leave background_after out",
        ),
    ],
)
def test_what_cannot_be_a_job_is_refused(config: dict[str, Any], reported: str) -> None:
    """The refusal names the remedy."""
    with pytest.raises(ValidationError, match=reported):
        AgentConfig.model_validate(config)


def test_calls_of_the_gateway_can_be_jobs() -> None:
    """They may take longer than a turn waits; a client may send every field with its default."""
    long = {"async": True, "timeout": 86_400}
    request = {"url": "https://example.org/", "description": "x", **long}
    tools = {"http": {"s": request}, "openapi": {"s": {"document": DOCUMENT, **long}}}
    servers = {"s": {"url": "https://example.org/", **long}, "t": {"command": "server", "async": False}}
    parsed = AgentConfig.model_validate({"mcp": servers, "tools": tools})
    assert parsed.http_tools["s"].is_async
    assert parsed.mcp["s"].may_be_job
