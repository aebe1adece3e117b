"""A desk with one sandbox on it, for a tool that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gateway.environments.resolver import Bench
from gateway.tools.tool import Desk
from sandbox.config import SandboxConfig
from sandbox.labels import Owner, Scope
from sandbox.port import Sandbox
from sandbox_rigs import Rig


@dataclass
class OneSandbox:
    """A workbench with one sandbox on it."""

    held: Sandbox

    async def sandbox(self, _bench: Bench) -> Sandbox:
        """Return it."""
        return self.held


def desk_of(config: SandboxConfig, held: Sandbox | None, rig: Rig) -> Desk:
    """Return a desk with a bench of this config."""
    owner = Owner(account="a", scope=Scope.SESSION, conversation="c", agent="g", person="")
    nothing = cast("Any", None)
    bench = Bench(config=config, spec=rig.spec(), owner=owner)
    workbench = cast("Any", OneSandbox(held)) if held else nothing
    return Desk(turn=nothing, bench=bench, workbench=workbench, jobs=nothing, files=nothing)
