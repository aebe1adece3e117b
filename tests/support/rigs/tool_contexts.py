"""Build a tool context with one sandbox, for a tool that needs nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.environments.environment import Environment
from gateway.store.turns.turns import Turn
from gateway.tools.tool import ToolContext
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope
from sandbox.port import Sandbox
from sandbox.testing.rig import ProviderRig


@dataclass
class SingleSandboxEnvironments:
    """An environment resolver with one sandbox."""

    only_sandbox: Sandbox

    async def sandbox(self, _bench: Environment) -> Sandbox:
        """Return it."""
        return self.only_sandbox

    async def present_files(self, _bench: Environment) -> Sandbox:
        """Return it: its files can be read."""
        return self.only_sandbox

    @asynccontextmanager
    async def in_use(self, _bench: Environment, *, changed: bool) -> AsyncIterator[None]:
        """Do nothing: the sandbox stays."""
        del changed
        yield


def make_tool_context(config: SandboxConfig, sandbox: Sandbox | None, rig: ProviderRig) -> ToolContext:
    """Return a tool context whose environment has this config."""
    owner = Owner(account="a", scope=Scope.SESSION, conversation="c", agent="g", person="")
    nothing = cast("Any", None)
    environment = Environment(config=config, spec=rig.spec(), owner=owner)
    environment_resolver = cast("Any", SingleSandboxEnvironments(sandbox)) if sandbox else nothing
    return ToolContext(
        turn=nothing,
        environment=environment,
        environment_resolver=environment_resolver,
        jobs=nothing,
        files=nothing,
    )


def asked_context(
    rig: ProviderRig, sandbox: Sandbox, database: Database, *, account: str, asker: str
) -> ToolContext:
    """Return the context of a turn that a person asked for over HTTP."""
    turn = Turn(
        id="trn_1",
        account=account,
        conversation="cnv_1",
        agent="agt_1",
        trigger="message",
        asker=asker,
        input="",
        created_at=utc_now(),
    )
    jobs = cast("Any", SimpleNamespace(read=database.read))
    return replace(make_tool_context(SandboxConfig(), sandbox, rig), turn=turn, jobs=jobs)
