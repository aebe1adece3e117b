"""What the expose tool promises a model, in the sandboxes of every provider that can expose a port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.builtin.expose import expose
from gateway.tools.tool import InvalidArguments, ToolContext
from sandbox.config import SandboxConfig
from sandbox.errors import ProviderRefused
from sandbox.port import Feature
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs
from tool_contexts import make_tool_context

EXPOSING_PROVIDERS = [
    name for name in all_rigs() if Feature.EXPOSE in built_in()[name.partition("-")[0]].features
]


@pytest.fixture(params=EXPOSING_PROVIDERS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return each provider that exposes ports, closed."""
    return all_rigs()[request.param](tmp_path)


@pytest.fixture
async def tool_context(rig: ProviderRig) -> AsyncIterator[ToolContext]:
    """Return a tool context with a sandbox."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        yield make_tool_context(SandboxConfig(provider=rig.plugin.name, persistent=True), sandbox, rig)
        await provider.destroy(sandbox.id)


async def test_a_port_gets_its_url_or_the_reason_against_it(tool_context: ToolContext) -> None:
    """The model gets a URL, of port 8080 where it names none; or it is refused in words."""
    for args, port in (({"port": 3000}, 3000), ({}, 8080)):
        if tool_context.environment.provider == "docker":
            with pytest.raises(ProviderRefused, match="allow-all"):
                await expose.run(tool_context, args, "key")
            continue
        result = await expose.run(tool_context, args, "key")
        reported = json.loads(result.content)
        assert reported["url"].startswith(("http://", "https://"))
        assert dict(result.detail) == {"port": port, "url": reported["url"]}
    for wrong in (0, 65536, "80", True, 8080.0):
        with pytest.raises(InvalidArguments, match="port"):
            await expose.run(tool_context, {"port": wrong}, "key")


def test_it_is_offered_where_it_can_be_carried_out(tmp_path: Path) -> None:
    """A reserved sandbox of a provider that exposes ports has the tool, and others do not."""
    rig = all_rigs()["host-rlimits"](tmp_path)

    def offered(provider: str, **config: Any) -> bool:
        return expose.is_available(make_tool_context(SandboxConfig(provider=provider, **config), None, rig))

    assert offered("e2b", persistent=True)
    assert offered("daytona", persistent=True)
    assert not offered("e2b")
    assert not offered("host", persistent=True)
    careful = [
        expose.needs_approval(SandboxConfig.model_validate({"permissionMode": mode}))
        for mode in ("ask", "bypass")
    ]
    assert careful == [True, False]
