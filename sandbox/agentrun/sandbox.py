"""A sandbox at AgentRun: one instance of a template, which ends at the latest after six hours."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sandbox.agentrun.api import AgentRunApi
from sandbox.agentrun.execution import AgentRunHandle
from sandbox.errors import FeatureUnsupported, ProviderRefused
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.exec.shell_sandbox import ShellSandbox
from sandbox.model import SandboxSpec

PREPARE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunUser:
    """The user that commands run as, and its home directory."""

    name: str
    home: str


async def prepare(handle: AgentRunHandle, spec: SandboxSpec) -> AgentRunUser:
    """Create the workspace's directory, with sudo if necessary; return the user."""
    mount = shlex.quote(spec.mount)
    text = (
        f'mkdir -p {mount} 2>/dev/null || sudo -n install -d -o "$(id -un)" {mount}\n'
        f"[ -w {mount} ] || {{ echo cannot make {mount}: the user needs sudo >&2; exit 1; }}\n"
        'id -un; echo "${HOME:-/home/user}"'
    )
    output = await handle.shell(text, timeout=PREPARE_SECONDS)
    name, _, home = output.decode(errors="replace").strip().partition("\n")
    if not name or not home.startswith("/"):
        raise ProviderRefused(f"agentrun: the sandbox does not name its user: {output[:200]!r}")
    return AgentRunUser(name=name, home=home)


class AgentRunSandbox(ShellSandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self,
        handle: AgentRunHandle,
        api: AgentRunApi,
        spec: SandboxSpec,
        user: AgentRunUser,
        callback: CompletionCallback,
    ) -> None:
        super().__init__(handle.id, handle, spec, user=user.name, home=user.home, callback=callback)
        self._api = api

    async def suspend(self) -> None:
        """Raise FeatureUnsupported: AgentRun ends an idle sandbox itself."""
        raise FeatureUnsupported("agentrun suspends no sandbox: it ends an idle one by its own timer")

    async def keep_alive(self, seconds: float) -> None:
        """Reset AgentRun's idle timer."""
        del seconds
        await self._api.touch(self.id)
