"""Of several processes that create a sandbox of one label at once, each one gets a sandbox that stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentrun_service
import daytona_service
import e2b_service
from sandbox import agentrun, daytona, e2b
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.port import CallbackDirectories, ProviderContext, ProviderPlugin

SPEC = SandboxSpec(label="dovecote-1", namespace="space", persistent=True)


class _LeavesWithOurs(dict[str, Any]):
    """The machines of a service in which a rival's is deleted right after the first one that we delete."""

    rival: tuple[str, Any]
    is_shown = False

    def show_rival(self, _checkpoint: str) -> None:
        """Let the service have the rival's, which is the older one; once."""
        if not self.is_shown:
            self.update([self.rival])
        self.is_shown = True

    def pop(self, number: str, *default: Any) -> Any:
        """Remove a machine, and the rival's."""
        super().pop(self.rival[0], None)
        return super().pop(number, *default)


def _for_e2b(url: str) -> dict[str, Any]:
    return {"api_key": e2b_service.API_KEY, "api_url": url, "sandbox_url": url, "http_version": "1.1"}


def _for_daytona(url: str) -> dict[str, Any]:
    return {"api_key": daytona_service.API_KEY, "api_url": url}


@pytest.mark.parametrize(
    ("plugin", "open_service", "settings"),
    [
        (agentrun.plugin, agentrun_service.agentrun_service, agentrun_service.settings_for),
        (e2b.plugin, e2b_service.e2b_service, _for_e2b),
        (daytona.plugin, daytona_service.daytona_service, _for_daytona),
    ],
    ids=["agentrun", "e2b", "daytona"],
)
async def test_the_older_sandbox_may_be_deleted_too(
    plugin: ProviderPlugin,
    open_service: Callable[[Path], Any],
    settings: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    """A rival whose sandbox is chosen in place of ours deletes it for one that is older still."""
    async with open_service(tmp_path / "service") as service:
        machines = service.machines = _LeavesWithOurs()
        context = ProviderContext(
            state=tmp_path / "state",
            callbacks=CallbackDirectories(root=tmp_path / "callbacks"),
            callback_url="https://bots.example",
        )
        async with plugin.open(plugin.settings.model_validate(settings(service.url)), context) as provider:
            rival = await provider.create(SPEC)
            machines.rival = (rival.id, dict.pop(machines, rival.id))
        shown = ProviderContext(
            state=tmp_path / "state",
            callbacks=context.callbacks,
            callback_url="https://bots.example",
            checkpoint=machines.show_rival,
        )
        try:
            async with plugin.open(plugin.settings.model_validate(settings(service.url)), shown) as provider:
                created = await provider.create(SPEC)
                assert created.id != rival.id
                assert list(machines) == [created.id]
                assert (await created.run(ExecRequest(script="echo here"))).stdout == b"here\n"
        finally:
            await machines.rival[1].process_host.terminate()
