"""The Git tools in a real sandbox: files with hostile names, and where the tools are offered."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.agents.port import ToolResult
from gateway.store.turns.turns import Turn
from gateway.tools.git.git_tools import GIT_TOOLS
from gateway.tools.tool import ToolContext, validate_arguments
from sandbox.config import SandboxConfig
from sandbox.model import ExecRequest
from sandbox.testing.names import HOSTILE_NAMES
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
CONFIG = SandboxConfig.model_validate({"runtimes": ["bash", "git"], "persistent": True})
TURN = Turn(
    id="trn_1",
    account="acc_1",
    conversation="cnv_1",
    agent="agt_1",
    trigger="schedule",
    input="",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ToolContext]:
    """Return a tool context with a sandbox of the host."""
    rig: ProviderRig = all_rigs()["host-rlimits"](tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        made = make_tool_context(CONFIG, sandbox, rig)
        owner = replace(made.environment.owner, workspace="wsp_1")
        yield replace(made, turn=TURN, environment=replace(made.environment, owner=owner))
        await provider.destroy(sandbox.id)


async def call(context: ToolContext, name: str, **args: Any) -> ToolResult:
    """Call a tool as the executor does."""
    tool = GIT_TOOLS[name]
    validate_arguments(tool.spec(context).schema, args)
    return await tool.run(context, args, "key")


async def run(context: ToolContext, script: str) -> str:
    """Run a script in the sandbox and return its output."""
    sandbox = await context.environment_resolver.sandbox(context.environment)
    return (await sandbox.run(ExecRequest(script=script))).stdout.decode()


async def test_files_with_hostile_names_are_committed(context: ToolContext) -> None:
    """Each name is one path: nothing else is staged, and no program runs."""
    sandbox = await context.environment_resolver.sandbox(context.environment)
    where = "-repo 'with\" quotes;$(touch pwned)"
    await run(context, f"mkdir -p './{where.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'")
    for name in HOSTILE_NAMES:
        await sandbox.write(f"{where}/{name}", name.encode())
    await sandbox.write(f"{where}/not this", b"left")
    await run(context, 'for d in ./-repo*; do git -C "$d" init -q -b main; done')
    message = 'It\'s "done"; $(touch pwned)\n\n-m --amend `id`\n# kept'
    done = await call(context, "git_commit", directory=where, message=message, paths=list(HOSTILE_NAMES))
    assert done.ok, done.content
    shown = await run(context, "git -C ./-repo* log --format='%an <%ae>%n%B'; git -C ./-repo* ls-files -z")
    author, _, rest = shown.partition("\n")
    assert author == "agent <agt_1@agent.invalid>"
    assert rest.startswith(message)
    assert set(rest.removeprefix(message).strip("\n").split("\0")[:-1]) >= set(HOSTILE_NAMES) - {"~"}
    status = await call(context, "git_status", directory=where)
    assert status.content.splitlines() == ["## main", '?? "not this"']
    assert await run(context, "find . -name pwned") == ""


async def test_changes_are_shown_and_a_branch_is_made(context: ToolContext) -> None:
    """Unstaged, staged and against a commit; a failure is git's own words."""
    assert not (await call(context, "git_status")).ok
    await run(context, "git init -q -b main && echo one >file")
    assert (await call(context, "git_commit", message="First")).ok
    await run(context, "echo two >>file; echo new >other; git add other")
    unstaged = (await call(context, "git_diff")).content
    assert ("+two" in unstaged, "+new" in unstaged) == (True, False)
    assert "+new" in (await call(context, "git_diff", staged=True)).content
    assert (await call(context, "git_commit", message="Second", branch="fix/it's")).ok
    assert "## fix/it's" in (await call(context, "git_status")).content
    assert "+two" in (await call(context, "git_diff", against="HEAD~1", paths=["file"])).content
    again = await call(context, "git_commit", message="Nothing")
    assert not again.ok
    assert "nothing to commit" in again.content


def test_the_tools_are_offered_where_there_is_git(context: ToolContext) -> None:
    """The record lists the runtime, the provider has it, and there is a workspace that may be written."""

    def offered(changed: ToolContext) -> set[str]:
        return {name for name, tool in GIT_TOOLS.items() if tool.is_offered(changed)}

    def with_environment(**changes: Any) -> ToolContext:
        return replace(context, environment=replace(context.environment, **changes))

    assert offered(context) == set(GIT_TOOLS)
    assert offered(with_environment(config=SandboxConfig())) == set()
    assert offered(with_environment(missing_runtimes=("git",))) == set()
    assert offered(with_environment(files_only=True)) == set()
    spec = replace(context.environment.spec, read_only=True)
    assert offered(with_environment(spec=spec)) == {"git_status", "git_diff", "git_push"}
    for tool in GIT_TOOLS.values():
        assert tool.needs_approval(cast("Any", SandboxConfig(permissionMode="edit")))
